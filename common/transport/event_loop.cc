#include "common/transport/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/base/check.h"

namespace luwu::transport {
namespace {

constexpr int kEventsPerWait = 64;
constexpr size_t kWarmCapacity = 256;

epoll_event EventFor(Pollable* pollable, bool writable) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET | (writable ? uint32_t{EPOLLOUT} : 0U);
  event.data.ptr = pollable;
  return event;
}

void Forget(std::vector<Pollable*>& list, Pollable* pollable) {
  std::replace(list.begin(), list.end(), pollable, static_cast<Pollable*>(nullptr));
}

}  // namespace

StatusOr<std::shared_ptr<EventLoop>> EventLoop::Start(const std::string& thread_name) {
  struct Made : EventLoop {  // make_shared needs a constructor that it may call
    explicit Made(const std::string& name) : EventLoop(name) {}
  };
  const std::shared_ptr<EventLoop> loop = std::make_shared<Made>(thread_name);
  loop->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  loop->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->epoll_.valid() || !loop->wake_.valid()) {
    return Error(ErrorCode::kResourceExhausted, "starting a progress thread: {}",
                 std::strerror(errno));
  }
  epoll_event event = EventFor(nullptr, false);
  if (::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return Error(ErrorCode::kInternal, "epoll_ctl: {}", std::strerror(errno));
  }
  loop->ready_.reserve(kWarmCapacity);
  loop->turn_.reserve(kWarmCapacity);
  loop->kicks_taken_.reserve(kWarmCapacity);
  {
    MutexLock lock(loop->mutex_);
    loop->kicks_.reserve(kWarmCapacity);
    try {
      loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
    } catch (const std::system_error& error) {
      return Error(ErrorCode::kResourceExhausted, "starting a progress thread: {}", error.what());
    }
    loop->thread_id_ = loop->thread_.get_id();
    ::pthread_setname_np(loop->thread_.native_handle(), thread_name.c_str());
  }
  return loop;
}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Stop() {
  if (!thread_.joinable()) return;
  LUWU_CHECK(!OnLoopThread(), "the progress thread must not end itself");
  mutex_.Lock();
  stopping_ = true;
  mutex_.Unlock();
  Wake();
  thread_.join();
}

Status EventLoop::Add(int fd, Pollable* pollable, bool writable) {
  epoll_event event = EventFor(pollable, writable);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Error(ErrorCode::kResourceExhausted, "watching a socket: {}", std::strerror(errno));
  }
  return OkStatus();
}

Status EventLoop::SetWritable(int fd, Pollable* pollable, bool writable) {
  epoll_event event = EventFor(pollable, writable);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return Error(ErrorCode::kInternal, "watching a socket: {}", std::strerror(errno));
  }
  return OkStatus();
}

void EventLoop::Wake() {
  // A full counter wakes as well, so EAGAIN needs no handling.
  (void)::eventfd_write(wake_.get(), 1);
}

void EventLoop::Kick(Pollable* pollable) {
  if (pollable->kicked_.exchange(true, std::memory_order_acq_rel)) return;
  mutex_.Lock();
  bool wake = false;
  if (!pollable->removed_) {
    kicks_.push_back(pollable);
    wake = std::exchange(asleep_, false);
  }
  mutex_.Unlock();
  if (wake) Wake();
}

void EventLoop::RunSync(const std::function<void()>& work) {
  if (OnLoopThread()) {
    work();
    return;
  }
  SyncTask task{&work};
  mutex_.Lock();
  if (!stopped_) {
    tasks_.push_back(&task);
    if (std::exchange(asleep_, false)) Wake();
    while (!task.done) task_done_.Wait(mutex_);
    mutex_.Unlock();
    return;
  }
  mutex_.Unlock();
  MutexLock lock(after_stop_);
  work();
}

void EventLoop::Remove(int fd, Pollable* pollable) {
  if (fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  SetDeadline(pollable, TimePoint::max());
  Forget(ready_, pollable);
  Forget(turn_, pollable);
  Forget(kicks_taken_, pollable);
  if (current_ == pollable) current_ = nullptr;
  pollable->queued_ = false;
  MutexLock lock(mutex_);
  pollable->removed_ = true;
  Forget(kicks_, pollable);
}

void EventLoop::SetDeadline(Pollable* pollable, TimePoint deadline) {
  if (pollable->deadline_ == deadline) return;
  if (pollable->deadline_ != TimePoint::max()) deadlines_.erase({pollable->deadline_, pollable});
  pollable->deadline_ = deadline;
  if (deadline != TimePoint::max()) deadlines_.emplace(deadline, pollable);
}

void EventLoop::Enqueue(Pollable* pollable) {
  if (std::exchange(pollable->queued_, true)) return;
  ready_.push_back(pollable);
}

int EventLoop::TimeoutMs() const {
  if (!ready_.empty()) return 0;
  if (deadlines_.empty()) return -1;
  return static_cast<int>(std::min<uint64_t>(MillisecondsUntil(deadlines_.begin()->first), 60'000));
}

// Fills ready_ and tasks_taken_. False when the loop is to end.
bool EventLoop::WaitForEvents() {
  mutex_.Lock();
  const bool idle = kicks_.empty() && tasks_.empty() && !stopping_;
  const int timeout_ms = idle ? TimeoutMs() : 0;
  asleep_ = timeout_ms != 0;
  mutex_.Unlock();

  std::array<epoll_event, kEventsPerWait> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerWait, timeout_ms);
  LUWU_CHECK(count >= 0 || errno == EINTR, "epoll_wait must not fail");
  for (int i = 0; i < count; ++i) {
    auto* pollable = static_cast<Pollable*>(events[i].data.ptr);
    if (pollable == nullptr) {
      eventfd_t ignored = 0;
      (void)::eventfd_read(wake_.get(), &ignored);
      continue;
    }
    pollable->events_ |= events[i].events;
    Enqueue(pollable);
  }

  MutexLock lock(mutex_);
  asleep_ = false;
  kicks_taken_.swap(kicks_);
  tasks_taken_.swap(tasks_);
  return !stopping_ || !tasks_taken_.empty();
}

void EventLoop::RunTasks() {
  if (tasks_taken_.empty()) return;
  for (const SyncTask* task : tasks_taken_) (*task->work)();
  MutexLock lock(mutex_);
  for (SyncTask* task : tasks_taken_) task->done = true;
  tasks_taken_.clear();
  task_done_.NotifyAll();
}

void EventLoop::RunDeadlines() {
  if (deadlines_.empty()) return;
  const TimePoint now = std::chrono::steady_clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Pollable* pollable = deadlines_.begin()->second;
    SetDeadline(pollable, TimePoint::max());
    pollable->OnDeadline();
  }
}

void EventLoop::RunReady() {
  turn_.swap(ready_);
  for (size_t i = 0; i < turn_.size(); ++i) {  // by index: Remove writes to the list
    current_ = turn_[i];
    if (current_ == nullptr) continue;
    current_->queued_ = false;
    const bool again = current_->OnReady(std::exchange(current_->events_, 0));
    if (again && current_ != nullptr) Enqueue(current_);
    current_ = nullptr;
  }
  turn_.clear();
}

void EventLoop::Run() {
  {
    MutexLock lock(mutex_);  // thread_id_ is set under it
  }
  while (WaitForEvents()) {
    live_.Begin();
    for (Pollable* pollable : kicks_taken_) {
      if (pollable == nullptr) continue;
      pollable->kicked_.store(false, std::memory_order_release);
      Enqueue(pollable);
    }
    kicks_taken_.clear();
    RunTasks();
    RunDeadlines();
    RunReady();
    live_.End();
  }
  // Nobody may be left waiting for a task that was brought at the last moment.
  while (true) {
    {
      MutexLock lock(mutex_);
      tasks_taken_.swap(tasks_);
      stopped_ = tasks_taken_.empty();
      if (stopped_) return;
    }
    RunTasks();
  }
}

}  // namespace luwu::transport
