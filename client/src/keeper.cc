#include "client/src/keeper.h"

#include <pthread.h>

#include <algorithm>

#include "common/base/log.h"

namespace luwu::client {
namespace {

constexpr uint64_t kDialMs = 1000;
constexpr uint64_t kBackoffFirstMs = 20;
constexpr uint64_t kBackoffLastMs = 500;
constexpr uint64_t kHeartbeatMsMin = 50;
constexpr uint64_t kIdleMs = 60'000;

// Errors that no later call of this session can get over.
bool EndsSession(ErrorCode code) {
  return code == ErrorCode::kFenced || code == ErrorCode::kStaleEpoch ||
         code == ErrorCode::kJobFailed || code == ErrorCode::kNotFound;
}

}  // namespace

Keeper::Keeper(Fabric* fabric, PushEngine* push, const std::vector<Peer>& peers)
    : fabric_(fabric), push_(push), waiter_(fabric->monitor(), Waiter::Interest::kAllButBoards) {
  const TimePoint now = std::chrono::steady_clock::now();
  for (const Peer& peer : peers) {
    PeerState state;
    state.peer = peer;
    state.heartbeat_due =
        now + Milliseconds(std::max<uint64_t>(peer.heartbeat_ms, kHeartbeatMsMin));
    state.dial_due = now;
    peers_.push_back(state);
  }
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
      case Task::kHeartbeat:
        DropDeadViews(peers_[index].peer.node);
        Heartbeat(index);
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
      NodeLink& node = fabric_->node(state.peer.node);
      if (node.is_down(lock) && fabric_->CheckNode(lock, state.peer.node).ok()) {
        if (now >= state.dial_due) return Task::kDial;
        wake_at = std::min(wake_at, state.dial_due);
      }
      if (!state.heartbeat_in_flight) {
        if (now >= state.heartbeat_due) {
          state.heartbeat_in_flight = true;
          return Task::kHeartbeat;
        }
        wake_at = std::min(wake_at, state.heartbeat_due);
      }
    }
    waiter_.WaitUntil(lock, wake_at);
  }
  return Task::kStop;
}

void Keeper::Heartbeat(size_t index) {
  const Peer& peer = peers_[index].peer;
  const uint64_t timeout_ms = std::max<uint64_t>(peer.heartbeat_ms, kDialMs);
  peer.rpc->Heartbeat(DeadlineAfter(timeout_ms), [this, index](const StatusOr<uint64_t>& result) {
    OnHeartbeat(index, result.status());
  });
}

void Keeper::OnHeartbeat(size_t index, const Status& status) {
  MonitorLock lock(fabric_->monitor());
  PeerState& state = peers_[index];
  state.heartbeat_in_flight = false;
  state.heartbeat_due = DeadlineAfter(std::max<uint64_t>(state.peer.heartbeat_ms, kHeartbeatMsMin));
  if (EndsSession(CodeOf(status))) fabric_->Fail(lock, status);
  waiter_.Wake(lock);
}

void Keeper::Dial(size_t index) {
  PeerState& state = peers_[index];
  NodeLink& node = fabric_->node(state.peer.node);
  const Status status = node.Connect(DeadlineAfter(kDialMs));
  if (status.ok()) {
    LogInfo("link_up", "node={}", node.node().name);
    push_->Renotify(state.peer.node);
  }
  MonitorLock lock(fabric_->monitor());
  const TimePoint now = std::chrono::steady_clock::now();
  state.backoff_ms =
      status.ok() ? 0 : std::clamp(state.backoff_ms * 2, kBackoffFirstMs, kBackoffLastMs);
  state.dial_due = now + Milliseconds(state.backoff_ms);
  // A refusal may mean that the session has ended there: ask.
  if (!status.ok()) state.heartbeat_due = now;
}

void Keeper::DropDeadViews(uint32_t node) {
  std::vector<std::shared_ptr<Link>> dead;  // destroyed after the lock is let go
  MonitorLock lock(fabric_->monitor());
  dead = fabric_->node(node).DropDeadViews(lock, fabric_->progress(lock).current_step());
}

}  // namespace luwu::client
