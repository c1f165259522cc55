#include "server/step/update_pool.h"

#include <pthread.h>
#include <sched.h>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/liveness.h"

namespace luwu {

namespace {

// A thread that cannot be pinned runs where the scheduler puts it.
void PinThisThread(uint32_t number) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) == 0) return;
  uint32_t skip = number % static_cast<uint32_t>(CPU_COUNT(&allowed));
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof(one), &one);
    return;
  }
}

}  // namespace

UpdatePool::UpdatePool(uint32_t threads, bool pinned) {
  LUWU_CHECK(threads >= 1, "the update stage needs a thread");
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i)
    threads_.emplace_back([this, i, pinned] { Loop(i, pinned); });
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

void UpdatePool::Loop(uint32_t number, bool pinned) {
  if (pinned) PinThisThread(number);
  ::pthread_setname_np(::pthread_self(),
                       fmt::format("luwu-update-{}", number).substr(0, 15).c_str());
  LiveLoop live(fmt::format("luwu-update-{}", number));
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
    live.Begin();
    LUWU_FAILPOINT("step.update");
    task->Run();
    live.End();
  }
}

}  // namespace luwu
