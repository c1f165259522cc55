#include "server/persist/work_threads.h"

#include <pthread.h>

#include <utility>

namespace luwu::persist {

WorkThreads::WorkThreads(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkThreads::~WorkThreads() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WorkThreads::Do(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.NotifyOne();
}

void WorkThreads::Run() {
  ::pthread_setname_np(::pthread_self(), "luwu-values");
  while (true) {
    std::function<void()> work;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace luwu::persist
