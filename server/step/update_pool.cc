#include "server/step/update_pool.h"

#include <pthread.h>

#include <fmt/format.h>

#include "common/base/check.h"

namespace luwu {

UpdatePool::UpdatePool(uint32_t threads) {
  LUWU_CHECK(threads >= 1, "the update stage needs a thread");
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { Loop(i); });
}

UpdatePool::~UpdatePool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void UpdatePool::Submit(Task* task) {
  {
    MutexLock lock(mutex_);
    LUWU_CHECK(!stopping_, "the owners of tasks stop before their pool");
    task->next_ = nullptr;
    (tail_ == nullptr ? head_ : tail_->next_) = task;
    tail_ = task;
    ++queued_;
  }
  wake_.NotifyOne();
}

uint64_t UpdatePool::queued() const {
  MutexLock lock(mutex_);
  return queued_;
}

void UpdatePool::Loop(uint32_t number) {
  ::pthread_setname_np(::pthread_self(),
                       fmt::format("luwu-update-{}", number).substr(0, 15).c_str());
  for (;;) {
    Task* task = nullptr;
    {
      MutexLock lock(mutex_);
      while (head_ == nullptr && !stopping_) wake_.Wait(mutex_);
      if (head_ == nullptr) return;
      task = head_;
      head_ = task->next_;
      if (head_ == nullptr) tail_ = nullptr;
      --queued_;
    }
    task->Run();
  }
}

}  // namespace luwu
