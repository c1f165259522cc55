// The one lock and wake-up of a session's data plane. Boards, links, slots, outstanding requests
// and step progress change on the transport's progress thread, on the keeper and in callers;
// whoever waits for any of that waits here. One leaf mutex per session keeps the lock order
// trivial: it is never held while a request is posted, an RPC is made, memory is copied, or a line
// is logged.
//
// State that it guards is reached through methods that take a `const MonitorLock&` as proof.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/clock.h"
#include "common/base/sync.h"

namespace luwu::client {

class Monitor;

// Holds a Monitor for a scope.
class MonitorLock {
 public:
  explicit MonitorLock(Monitor& monitor) LUWU_NO_THREAD_SAFETY_ANALYSIS;
  ~MonitorLock() LUWU_NO_THREAD_SAFETY_ANALYSIS;
  MonitorLock(const MonitorLock&) = delete;
  MonitorLock& operator=(const MonitorLock&) = delete;

 private:
  friend class Waiter;
  Monitor& monitor_;
};

// One place to wait. Registered for broadcasts while it lives; woken alone by Wake().
class Waiter {
 public:
  // What wakes it: boards change thousands of times a second, the rest seldom.
  enum class Interest { kEverything, kAllButBoards };
  explicit Waiter(Monitor& monitor, Interest interest = Interest::kEverything);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Returns after a wake-up or at `deadline`; the caller re-checks its condition either way.
  void WaitUntil(const MonitorLock& lock, TimePoint deadline) LUWU_NO_THREAD_SAFETY_ANALYSIS;
  void Wake(const MonitorLock&) { changed_.NotifyAll(); }

 private:
  friend class Monitor;
  Monitor& monitor_;
  const Interest interest_;
  CondVar changed_;
};

class Monitor {
 public:
  void BroadcastBoard(const MonitorLock& lock) {
    for (Waiter* waiter : waiters_) {
      if (waiter->interest_ == Waiter::Interest::kEverything) waiter->Wake(lock);
    }
  }
  // A link, the step, or the health of the session changed.
  void Broadcast(const MonitorLock& lock) {
    for (Waiter* waiter : waiters_) waiter->Wake(lock);
  }

 private:
  friend class MonitorLock;
  friend class Waiter;
  Mutex mutex_;
  std::vector<Waiter*> waiters_;
};

inline MonitorLock::MonitorLock(Monitor& monitor) : monitor_(monitor) { monitor_.mutex_.Lock(); }
inline MonitorLock::~MonitorLock() { monitor_.mutex_.Unlock(); }

inline Waiter::Waiter(Monitor& monitor, Interest interest)
    : monitor_(monitor), interest_(interest) {
  MonitorLock lock(monitor_);
  monitor_.waiters_.push_back(this);
}
inline Waiter::~Waiter() {
  MonitorLock lock(monitor_);
  auto& waiters = monitor_.waiters_;
  waiters.erase(std::remove(waiters.begin(), waiters.end(), this), waiters.end());
}
inline void Waiter::WaitUntil(const MonitorLock& lock, TimePoint deadline) {
  changed_.WaitUntil(lock.monitor_.mutex_, deadline);
}

}  // namespace luwu::client
