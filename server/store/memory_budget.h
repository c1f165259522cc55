// The daemon's memory budget: bytes are reserved before they are allocated and given back when the
// owner goes. A reservation that does not fit is refused with the numbers that would help, so that
// a job is turned away when it is created and not killed in the middle of a step. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace luwu {

class MemoryBudget;

// Bytes taken from a budget, returned by the destructor. The budget must outlive it.
class MemoryReservation {
 public:
  MemoryReservation() = default;
  MemoryReservation(MemoryReservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryReservation& operator=(MemoryReservation&& other) noexcept;
  ~MemoryReservation();

  uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryBudget;
  MemoryReservation(MemoryBudget* budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {}
  MemoryBudget* budget_ = nullptr;
  uint64_t bytes_ = 0;
};

class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t total) : total_(total) {}

  // kResourceExhausted names `what`, the bytes asked for, those still free, and the total budget
  // that would have been enough.
  StatusOr<MemoryReservation> Reserve(uint64_t bytes, const std::string& what);

  uint64_t used() const;
  uint64_t total() const { return total_; }

 private:
  friend class MemoryReservation;
  void Release(uint64_t bytes);

  const uint64_t total_;
  mutable Mutex mutex_;
  uint64_t used_ LUWU_GUARDED_BY(mutex_) = 0;
};

}  // namespace luwu
