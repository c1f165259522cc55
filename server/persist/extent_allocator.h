// Which parts of an extent file are free. Sizes and offsets are multiples of kIoAlignment. Takes
// the smallest free part that is large enough, so that shards of equal size take turns in equal
// parts; past the last one the file has to grow. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace luwu::persist {

class ExtentAllocator {
 public:
  // Nothing when no free part of the file is large enough: Extend.
  std::optional<uint64_t> Take(uint64_t bytes);
  // Take would find a part.
  bool Fits(uint64_t bytes) const { return by_bytes_.lower_bound({bytes, 0}) != by_bytes_.end(); }
  void Give(uint64_t offset, uint64_t bytes);
  // Recovery, on an empty allocator whose size is set. False: (a part of) it is taken already.
  bool Mark(uint64_t offset, uint64_t bytes);
  // The file reaches to `size` now; never less than before.
  void Extend(uint64_t size);

  uint64_t size() const { return size_; }
  uint64_t free_bytes() const { return free_bytes_; }
  // How much the file has to grow for `bytes`, a free part at its end counted.
  uint64_t Missing(uint64_t bytes) const;

 private:
  void Insert(uint64_t offset, uint64_t bytes);
  void Erase(std::map<uint64_t, uint64_t>::iterator part);

  uint64_t size_ = 0;
  uint64_t free_bytes_ = 0;
  std::map<uint64_t, uint64_t> by_offset_;            // offset -> bytes; neighbours are merged
  std::set<std::pair<uint64_t, uint64_t>> by_bytes_;  // (bytes, offset)
};

}  // namespace luwu::persist
