// One thread that waits for sockets and runs what is ready: the progress thread of a Dialler
// ("luwu-io") or of an Acceptor ("luwu-rx"). Sockets are registered edge-triggered; a handler does
// a bounded piece of work per turn and asks to be called again, so that no link starves another.
//
// Every handler, deadline and task runs on that thread with no lock held. Other threads may Add,
// Kick and RunSync; the rest belongs to the progress thread. After Stop, tasks run in the thread
// that brings them, one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/liveness.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"

namespace luwu::transport {

// Something that the loop calls. Must be removed (EventLoop::Remove) before it is destroyed.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // `events`: epoll bits since the last call; 0 when kicked or called again. True: call me again
  // in the next turn.
  virtual bool OnReady(uint32_t events) = 0;
  virtual void OnDeadline() {}

 private:
  friend class EventLoop;
  uint32_t events_ = 0;  // progress thread, as the two below
  bool queued_ = false;
  TimePoint deadline_ = TimePoint::max();
  std::atomic<bool> kicked_{false};
  bool removed_ = false;  // guarded by the loop's mutex
};

class EventLoop {
 public:
  static StatusOr<std::shared_ptr<EventLoop>> Start(const std::string& thread_name);
  ~EventLoop();

  // Ends and joins the thread. Not from the progress thread. Idempotent.
  void Stop();
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_; }

  // Reports readability, peer shutdown and errors; and, when `writable`, also writability.
  Status Add(int fd, Pollable* pollable, bool writable);
  // Changes whether writability is reported; reports at once what holds now.
  Status SetWritable(int fd, Pollable* pollable, bool writable);

  // Calls `pollable` soon. Never blocks; no allocation after warm-up.
  void Kick(Pollable* pollable);
  // Runs `work` on the progress thread and returns when it has run.
  void RunSync(const std::function<void()>& work);

  // ---- progress thread only --------------------------------------------------------------------

  // Forgets everything about `pollable` for good, later kicks included; `fd` (may be -1) leaves the
  // epoll set.
  void Remove(int fd, Pollable* pollable);
  // Calls OnDeadline once after `deadline`; TimePoint::max() takes it back.
  void SetDeadline(Pollable* pollable, TimePoint deadline);

 private:
  struct SyncTask {
    const std::function<void()>* work = nullptr;
    bool done = false;
  };

  explicit EventLoop(const std::string& name) : live_(name) {}
  void Run();
  bool WaitForEvents();
  void RunTasks();
  void RunDeadlines();
  void RunReady();
  int TimeoutMs() const;
  void Enqueue(Pollable* pollable);
  void Wake();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;
  std::thread::id thread_id_;

  // Progress thread.
  LiveLoop live_;
  std::vector<Pollable*> ready_;  // for the next turn
  std::vector<Pollable*> turn_;   // being run; removed ones become null
  Pollable* current_ = nullptr;
  std::vector<Pollable*> kicks_taken_;
  std::vector<SyncTask*> tasks_taken_;
  std::set<std::pair<TimePoint, Pollable*>> deadlines_;

  Mutex mutex_;
  std::vector<Pollable*> kicks_ LUWU_GUARDED_BY(mutex_);
  std::vector<SyncTask*> tasks_ LUWU_GUARDED_BY(mutex_);
  bool asleep_ LUWU_GUARDED_BY(mutex_) = false;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  bool stopped_ LUWU_GUARDED_BY(mutex_) = false;
  CondVar task_done_;
  Mutex after_stop_;  // held by a task that runs after the end of the thread
};

}  // namespace luwu::transport
