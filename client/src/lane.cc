#include "client/src/lane.h"

#include <pthread.h>

#include <utility>

namespace luwu::client {

Lane::Lane(const std::string& name) : thread_([this] { Run(); }) {
  ::pthread_setname_np(thread_.native_handle(), name.c_str());
}

Lane::~Lane() { Stop(); }

Status Lane::Submit(Task task) {
  MutexLock lock(mutex_);
  if (stopping_) return Error(ErrorCode::kCancelled, "the session is being closed");
  if (tasks_.size() >= kLaneTasksMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "{} asynchronous operations are queued, the most there may be; wait for some",
                 tasks_.size());
  }
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
  return OkStatus();
}

void Lane::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Lane::Run() {
  while (true) {
    Task task;
    bool cancelled = false;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      cancelled = stopping_;
    }
    task(cancelled);
  }
}

}  // namespace luwu::client
