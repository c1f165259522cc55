// One asynchronous fetch or push: what a luwu_op handle names. Finished exactly once, by a lane, by
// the caller's thread, or by the end of the session; waited for from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace luwu::client {

class Operation {
 public:
  virtual ~Operation() = default;

  // The first call counts.
  void Finish(Status result) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (done_) return;
    result_ = std::move(result);
    done_ = true;
    finished_.NotifyAll();
  }
  // False when it is not done by `deadline`.
  bool WaitUntil(TimePoint deadline) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!done_) {
      if (!finished_.WaitUntil(mutex_, deadline) && !done_) return false;
    }
    return true;
  }
  bool done() const LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return done_;
  }
  // What is left to do when the result, which is OK, is taken: once, on the thread that takes it.
  virtual Status Deliver() { return OkStatus(); }
  // Once done.
  Status result() const LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return result_;
  }

 private:
  mutable Mutex mutex_;
  CondVar finished_;
  bool done_ LUWU_GUARDED_BY(mutex_) = false;
  Status result_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::client
