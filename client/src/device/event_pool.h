// Events for operations, made on demand and used again: as many exist as there were operations at
// the same time. A lent event outlives the session that lent it; any thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "client/src/device/device.h"
#include "common/base/sync.h"

namespace luwu::client {

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(const Device* device) : device_(device) {}

  // An event for as long as this lives.
  class Loan {
   public:
    Loan() = default;
    Loan(std::shared_ptr<EventPool> pool, OwnedEvent event)
        : pool_(std::move(pool)), event_(std::move(event)) {}
    Loan(Loan&&) = default;
    Loan& operator=(Loan&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(event_, other.event_);
      return *this;
    }
    ~Loan() {
      if (pool_ != nullptr) pool_->Return(std::move(event_));
    }
    cuda::Event get() const { return event_.get(); }

   private:
    std::shared_ptr<EventPool> pool_;
    OwnedEvent event_;
  };

  StatusOr<Loan> Take() LUWU_EXCLUDES(mutex_) {
    OwnedEvent event;
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        event = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (event.get() == nullptr) {
      ASSIGN_OR_RETURN(event, device_->MakeEvent());
    }
    return Loan(shared_from_this(), std::move(event));
  }

 private:
  void Return(OwnedEvent event) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(event));
  }

  const Device* const device_;
  Mutex mutex_;
  std::vector<OwnedEvent> idle_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::client
