// Generation-checked handles: what the C ABI gives out instead of pointers. A handle names a kind,
// a table entry and the entry's generation, so that a stale handle, one of another kind, or a
// made-up number finds nothing. Used by the C ABI files only, from any thread; a lookup returns a
// shared pointer, so an object that is removed at the same time lives until its last user is done.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/hmac.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace luwu::client {

// kind: 4 bits | generation: 36 bits | index: 24 bits. Never 0: kinds start at 1.
using Handle = uint64_t;

struct HandleParts {
  static constexpr int kIndexBits = 24;
  static constexpr int kGenerationBits = 36;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;
  static constexpr uint64_t kGenerationMask = (uint64_t{1} << kGenerationBits) - 1;

  uint64_t kind = 0;
  uint64_t generation = 0;
  uint64_t index = 0;

  static HandleParts Of(Handle handle) {
    return {handle >> (kIndexBits + kGenerationBits), (handle >> kIndexBits) & kGenerationMask,
            handle & kIndexMask};
  }
  Handle Pack() const {
    return (kind << (kIndexBits + kGenerationBits)) | (generation << kIndexBits) | index;
  }
};

template <typename T>
class HandleTable {
 public:
  // `kind` is 1..15 and differs between tables; at most `entries_max` (< 2^24) live handles.
  // Generations start at a random number: a handle of another process finds nothing here.
  HandleTable(uint64_t kind, uint32_t entries_max)
      : kind_(kind), entries_max_(entries_max), first_generation_(RandomU64()) {}

  StatusOr<Handle> Add(std::shared_ptr<T> object) {
    MutexLock lock(mutex_);
    if (free_.empty()) {
      if (entries_.size() >= entries_max_) {
        return Error(ErrorCode::kResourceExhausted,
                     "{} handles are in use; release some (wait for operations, close sessions)",
                     entries_.size());
      }
      entries_.push_back({first_generation_ & HandleParts::kGenerationMask, nullptr});
      free_.push_back(static_cast<uint32_t>(entries_.size() - 1));
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    entries_[index].object = std::move(object);
    return HandleParts{kind_, entries_[index].generation, index}.Pack();
  }

  // Null when the handle names nothing here.
  std::shared_ptr<T> Find(Handle handle) const {
    MutexLock lock(mutex_);
    const Entry* entry = Locate(handle);
    return entry == nullptr ? nullptr : entry->object;
  }

  // Ends the handle. Of several threads that remove one handle, one gets the object.
  std::shared_ptr<T> Remove(Handle handle) {
    MutexLock lock(mutex_);
    const Entry* found = Locate(handle);
    if (found == nullptr) return nullptr;
    const uint64_t index = HandleParts::Of(handle).index;
    Entry& entry = entries_[index];
    entry.generation = (entry.generation + 1) & HandleParts::kGenerationMask;
    free_.push_back(static_cast<uint32_t>(index));
    return std::exchange(entry.object, nullptr);
  }

  std::vector<std::shared_ptr<T>> All() const {
    MutexLock lock(mutex_);
    std::vector<std::shared_ptr<T>> objects;
    for (const Entry& entry : entries_) {
      if (entry.object != nullptr) objects.push_back(entry.object);
    }
    return objects;
  }

 private:
  struct Entry {
    uint64_t generation = 0;
    std::shared_ptr<T> object;
  };

  const Entry* Locate(Handle handle) const LUWU_REQUIRES(mutex_) {
    const HandleParts parts = HandleParts::Of(handle);
    if (parts.kind != kind_ || parts.index >= entries_.size()) return nullptr;
    const Entry& entry = entries_[parts.index];
    if (entry.generation != parts.generation || entry.object == nullptr) return nullptr;
    return &entry;
  }

  const uint64_t kind_;
  const uint32_t entries_max_;
  const uint64_t first_generation_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ LUWU_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::client
