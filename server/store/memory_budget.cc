#include "server/store/memory_budget.h"

#include "common/base/bytes.h"
#include "common/base/check.h"

namespace luwu {

MemoryReservation& MemoryReservation::operator=(MemoryReservation&& other) noexcept {
  if (this != &other) {
    if (budget_ != nullptr) budget_->Release(bytes_);
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MemoryReservation::~MemoryReservation() {
  if (budget_ != nullptr) budget_->Release(bytes_);
}

StatusOr<MemoryReservation> MemoryBudget::Reserve(uint64_t bytes, const std::string& what) {
  MutexLock lock(mutex_);
  const uint64_t free = total_ - used_;
  if (bytes > free) {
    const auto wanted = CheckedAdd(used_, bytes);
    return Error(ErrorCode::kResourceExhausted,
                 "{} needs {}, but only {} of the memory budget of {} are free; a budget of {} "
                 "would do",
                 what, HumanBytes(bytes), HumanBytes(free), HumanBytes(total_),
                 wanted ? HumanBytes(*wanted) : "more than 16 EiB");
  }
  used_ += bytes;
  return MemoryReservation(this, bytes);
}

void MemoryBudget::Release(uint64_t bytes) {
  MutexLock lock(mutex_);
  LUWU_CHECK(bytes <= used_, "only reserved bytes are released");
  used_ -= bytes;
}

uint64_t MemoryBudget::used() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace luwu
