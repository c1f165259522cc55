#include "server/service/work_queue.h"

#include <pthread.h>

#include <utility>

#include "common/base/check.h"

namespace luwu {

WorkQueue::WorkQueue(const std::string& name, uint32_t threads, size_t tasks_max)
    : tasks_max_(tasks_max) {
  LUWU_CHECK(threads > 0 && name.size() <= 15, "a work queue needs a thread and a short name");
  for (uint32_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
  }
}

WorkQueue::~WorkQueue() { Shutdown(); }

bool WorkQueue::Post(Task task) {
  {
    MutexLock lock(mutex_);
    if (stopping_ || tasks_.size() >= tasks_max_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.NotifyOne();
  return true;
}

void WorkQueue::Shutdown() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkQueue::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) wake_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace luwu
