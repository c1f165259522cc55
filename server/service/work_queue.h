// A few threads for control-plane work that takes long (creating a job touches gigabytes, reading a
// layer waits for its client): gRPC's own threads must stay free to answer. Bounded; every task
// that was taken in runs exactly once, also during shutdown, so that every RPC gets its answer.
//
// Owned by the daemon; Post() from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sync.h"

namespace luwu {

class WorkQueue {
 public:
  using Task = std::function<void()>;

  // `name` shows in thread listings (at most 15 characters).
  WorkQueue(const std::string& name, uint32_t threads, size_t tasks_max);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False when `tasks_max` tasks wait already or Shutdown() has begun; the task is then dropped.
  [[nodiscard]] bool Post(Task task);

  // Runs what is queued, then joins the threads. Idempotent; not from a task.
  void Shutdown();

 private:
  void Run();

  const size_t tasks_max_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<Task> tasks_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace luwu
