#include "server/persist/extent_allocator.h"

#include <iterator>

#include "common/base/check.h"

namespace luwu::persist {

void ExtentAllocator::Insert(uint64_t offset, uint64_t bytes) {
  by_offset_[offset] = bytes;
  by_bytes_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void ExtentAllocator::Erase(std::map<uint64_t, uint64_t>::iterator part) {
  by_bytes_.erase({part->second, part->first});
  free_bytes_ -= part->second;
  by_offset_.erase(part);
}

std::optional<uint64_t> ExtentAllocator::Take(uint64_t bytes) {
  const auto best = by_bytes_.lower_bound({bytes, 0});
  if (best == by_bytes_.end()) return std::nullopt;
  const auto [found, offset] = *best;
  Erase(by_offset_.find(offset));
  if (found > bytes) Insert(offset + bytes, found - bytes);
  return offset;
}

void ExtentAllocator::Give(uint64_t offset, uint64_t bytes) {
  auto next = by_offset_.lower_bound(offset);
  LUWU_CHECK(next == by_offset_.end() || offset + bytes <= next->first,
             "an extent is given back once");
  if (next != by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    Erase(next);
    next = by_offset_.lower_bound(offset);
  }
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    LUWU_CHECK(before->first + before->second <= offset, "an extent is given back once");
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      Erase(before);
    }
  }
  Insert(offset, bytes);
}

bool ExtentAllocator::Mark(uint64_t offset, uint64_t bytes) {
  auto part = by_offset_.upper_bound(offset);
  if (part == by_offset_.begin()) return false;
  --part;
  const auto [begin, length] = *part;
  if (offset < begin || bytes > length || offset - begin > length - bytes) return false;
  Erase(part);
  if (offset > begin) Insert(begin, offset - begin);
  const uint64_t after = begin + length - (offset + bytes);
  if (after > 0) Insert(offset + bytes, after);
  return true;
}

void ExtentAllocator::Extend(uint64_t size) {
  LUWU_CHECK(size >= size_, "an extent file does not shrink");
  if (size == size_) return;
  const uint64_t begin = size_;
  size_ = size;
  Give(begin, size - begin);
}

uint64_t ExtentAllocator::Missing(uint64_t bytes) const {
  if (by_offset_.empty()) return bytes;
  const auto last = std::prev(by_offset_.end());
  const uint64_t tail = last->first + last->second == size_ ? last->second : 0;
  return tail >= bytes ? 0 : bytes - tail;
}

}  // namespace luwu::persist
