#include "client/src/keeper.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace luwu::client {
namespace {

constexpr uint64_t kDialMs = 1000;
constexpr uint64_t kBackoffFirstMs = 20;
constexpr uint64_t kBackoffLastMs = 500;
constexpr uint64_t kSweepMs = 1000;
constexpr uint64_t kIdleMs = 60'000;

}  // namespace

Keeper::Keeper(Fabric* fabric, PushEngine* push, Heartbeats* heartbeats)
    : fabric_(fabric),
      push_(push),
      heartbeats_(heartbeats),
      waiter_(fabric->monitor(), Waiter::Interest::kAllButBoards) {
  const TimePoint now = std::chrono::steady_clock::now();
  for (const uint32_t node : fabric->active()) peers_.push_back({.node = node, .dial_due = now});
  sweep_due_ = now + Milliseconds(kSweepMs);
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "luwu-keep");
}

Keeper::~Keeper() { Stop(); }

void Keeper::Stop() {
  {
    MonitorLock lock(fabric_->monitor());
    stopping_ = true;
    waiter_.Wake(lock);
  }
  if (thread_.joinable()) thread_.join();
}

void Keeper::Run() {
  while (true) {
    size_t index = 0;
    Task task = Task::kStop;
    {
      MonitorLock lock(fabric_->monitor());
      task = NextTask(lock, &index);
    }
    switch (task) {
      case Task::kStop:
        return;
      case Task::kSweep:
        DropDeadViews();
        break;
      case Task::kDial:
        Dial(index);
        break;
    }
  }
}

Keeper::Task Keeper::NextTask(const MonitorLock& lock, size_t* index) {
  while (!stopping_) {
    const TimePoint now = std::chrono::steady_clock::now();
    TimePoint wake_at = now + Milliseconds(kIdleMs);
    const bool alive = fabric_->Health(lock).ok();
    for (size_t i = 0; alive && i < peers_.size(); ++i) {
      PeerState& state = peers_[i];
      *index = i;
      NodeLink& node = fabric_->node(state.node);
      if (node.is_down(lock) && fabric_->CheckNode(lock, state.node).ok()) {
        if (now >= state.dial_due) return Task::kDial;
        wake_at = std::min(wake_at, state.dial_due);
      }
      if (node.has_retired(lock)) {
        if (now >= sweep_due_) return Task::kSweep;
        wake_at = std::min(wake_at, sweep_due_);
      }
    }
    waiter_.WaitUntil(lock, wake_at);
  }
  return Task::kStop;
}

void Keeper::Dial(size_t index) {
  PeerState& state = peers_[index];
  NodeLink& node = fabric_->node(state.node);
  const Status status = node.Connect(DeadlineAfter(kDialMs));
  if (status.ok()) {
    LogInfo("link_up", "node={}", node.node().name);
    push_->Renotify(state.node);
  } else {
    heartbeats_->Ask(state.node);  // a refusal may mean that the session has ended there
  }
  MonitorLock lock(fabric_->monitor());
  state.backoff_ms =
      status.ok() ? 0 : std::clamp(state.backoff_ms * 2, kBackoffFirstMs, kBackoffLastMs);
  state.dial_due = std::chrono::steady_clock::now() + Milliseconds(state.backoff_ms);
}

void Keeper::DropDeadViews() {
  std::vector<std::shared_ptr<Link>> dead;  // destroyed after the lock is let go
  MonitorLock lock(fabric_->monitor());
  for (const PeerState& peer : peers_) {
    for (auto& link :
         fabric_->node(peer.node).DropDeadViews(lock, fabric_->progress(lock).current_step())) {
      dead.push_back(std::move(link));
    }
  }
  sweep_due_ = std::chrono::steady_clock::now() + Milliseconds(kSweepMs);
}

}  // namespace luwu::client
