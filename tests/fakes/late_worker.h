// A thread that does what it is given, one after the other, later. It may be destroyed by what it
// has just done: whoever holds the last reference to an owner may be a callback.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/sync.h"

namespace luwu::fakes {

class LateWorker {
 public:
  LateWorker() : thread_([queue = queue_] { Loop(queue.get()); }) {}
  // What was posted before is done first.
  ~LateWorker() {
    const bool by_itself = thread_.get_id() == std::this_thread::get_id();
    {
      MutexLock lock(queue_->mutex);
      queue_->stopping = true;
      LUWU_CHECK(!by_itself || queue_->work.empty(), "what is posted keeps its owner alive");
      queue_->wake.NotifyAll();
    }
    if (by_itself) {
      Unjoined::Get().Add(std::move(thread_));
    } else {
      thread_.join();
    }
  }
  LateWorker(const LateWorker&) = delete;
  LateWorker& operator=(const LateWorker&) = delete;

  void Post(std::function<void()> work) {
    MutexLock lock(queue_->mutex);
    queue_->work.push_back(std::move(work));
    queue_->wake.NotifyAll();
  }
  void Hold(bool hold) {  // what is posted waits
    MutexLock lock(queue_->mutex);
    queue_->hold = hold;
    queue_->wake.NotifyAll();
  }

 private:
  // Outlives the worker that it belongs to.
  struct Queue {
    Mutex mutex;
    CondVar wake;
    std::deque<std::function<void()>> work LUWU_GUARDED_BY(mutex);
    bool hold LUWU_GUARDED_BY(mutex) = false;
    bool stopping LUWU_GUARDED_BY(mutex) = false;
  };
  // Threads that cannot be joined where they end; at the end of the process.
  class Unjoined {
   public:
    static Unjoined& Get() {
      static Unjoined unjoined;
      return unjoined;
    }
    ~Unjoined() {
      for (std::thread& thread : threads_) thread.join();
    }
    void Add(std::thread thread) {
      MutexLock lock(mutex_);
      threads_.push_back(std::move(thread));
    }

   private:
    Mutex mutex_;
    std::vector<std::thread> threads_;
  };

  static void Loop(Queue* queue) {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(queue->mutex);
        while (!queue->stopping && (queue->hold || queue->work.empty())) {
          queue->wake.Wait(queue->mutex);
        }
        if (queue->work.empty()) return;
        work = std::move(queue->work.front());
        queue->work.pop_front();
      }
      work();
    }
  }

  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};

}  // namespace luwu::fakes
