// A background thread that runs the asynchronous fetches or pushes of one session in the order in
// which they were submitted. A session has two: fetches and pushes overlap, and neither overtakes
// its own kind.
//
// Submit from any thread. Each task runs on the lane's thread and finishes its operation; what is
// still queued at Stop finishes with kCancelled.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "client/src/operation.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace luwu::client {

inline constexpr size_t kLaneTasksMax = 4096;

class Lane {
 public:
  // What to do; `cancelled` is true when it is to be given up without being tried.
  using Task = std::function<void(bool cancelled)>;

  // `name` is the thread's, at most 15 characters.
  explicit Lane(const std::string& name);
  ~Lane();  // stops

  // kResourceExhausted when too many tasks wait, kCancelled after Stop.
  Status Submit(Task task) LUWU_EXCLUDES(mutex_);
  // Ends the thread after the task in progress (which the session has told to end).
  void Stop() LUWU_EXCLUDES(mutex_);

 private:
  void Run() LUWU_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace luwu::client
