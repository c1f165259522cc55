// Annotated wrappers over std::mutex and std::condition_variable. absl::Mutex is not used: the
// packaged library is not instrumented and reports false races under ThreadSanitizer.
#pragma once

#include <condition_variable>
#include <mutex>

#include "common/base/clock.h"
#include "common/base/thread_annotations.h"

namespace luwu {

class LUWU_CAPABILITY("mutex") Mutex {
 public:
  void Lock() LUWU_ACQUIRE() { mutex_.lock(); }
  void Unlock() LUWU_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class LUWU_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LUWU_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() LUWU_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Callers hold `mutex`, re-check their condition after every return, and always have a deadline
// or a shutdown flag.
class CondVar {
 public:
  void Wait(Mutex& mutex) LUWU_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when the deadline passed.
  bool WaitUntil(Mutex& mutex, TimePoint deadline) LUWU_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool signalled = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace luwu
