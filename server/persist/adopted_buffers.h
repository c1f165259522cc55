// Memory that a job's transfers use again and again, registered with the kernel for as long as this
// lives (JobStorage::AdoptBuffers). Declared after the memory itself: it has to go first.
#pragma once

#include <memory>
#include <utility>

#include "common/base/bytes.h"
#include "server/persist/job_storage.h"

namespace luwu::persist {

class AdoptedBuffers {
 public:
  AdoptedBuffers() = default;
  AdoptedBuffers(std::shared_ptr<JobStorage> storage, ByteSpan memory)
      : storage_(std::move(storage)), memory_(memory) {
    if (!memory_.empty()) storage_->AdoptBuffers(memory_);
  }
  AdoptedBuffers(AdoptedBuffers&& other) noexcept
      : storage_(std::move(other.storage_)), memory_(std::exchange(other.memory_, {})) {}
  AdoptedBuffers& operator=(AdoptedBuffers&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  // No transfer uses them any more.
  ~AdoptedBuffers() {
    if (!memory_.empty()) storage_->ForgetBuffers(memory_);
  }

 private:
  std::shared_ptr<JobStorage> storage_;
  ByteSpan memory_;
};

}  // namespace luwu::persist
