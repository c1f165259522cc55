#include "client/src/heartbeats.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace luwu::client {
namespace {

constexpr uint64_t kIntervalMsMin = 50;
constexpr uint64_t kAnswerMsMin = 1000;
constexpr uint64_t kIdleMs = 60'000;

// Errors that no later call of this session can get over.
bool EndsSession(ErrorCode code) {
  return code == ErrorCode::kFenced || code == ErrorCode::kStaleEpoch ||
         code == ErrorCode::kJobFailed || code == ErrorCode::kNotFound ||
         code == ErrorCode::kRolledBack;
}

struct Peer {
  NodeRpc* rpc = nullptr;
  uint64_t interval_ms = 0;
  TimePoint due;
  bool in_flight = false;
};

}  // namespace

struct Heartbeats::State {
  Mutex mutex;
  CondVar changed;
  bool stopping LUWU_GUARDED_BY(mutex) = false;
  Status ended LUWU_GUARDED_BY(mutex);
  Listener listener LUWU_GUARDED_BY(mutex);
  std::map<uint32_t, Peer> peers LUWU_GUARDED_BY(mutex);

  // Under the lock, so that Stop() waits for it.
  void Tell() LUWU_REQUIRES(mutex) {
    if (ended.ok() || !listener) return;
    std::exchange(listener, nullptr)(ended);
  }
  // The first node whose turn it is; until then `wake_at` is brought forward.
  std::optional<uint32_t> NextDue(TimePoint now, TimePoint* wake_at) LUWU_REQUIRES(mutex) {
    if (!ended.ok()) return std::nullopt;
    for (auto& [node, peer] : peers) {
      if (peer.in_flight) continue;
      if (peer.due <= now) return node;
      *wake_at = std::min(*wake_at, peer.due);
    }
    return std::nullopt;
  }
};

Heartbeats::Heartbeats() : state_(std::make_shared<State>()), thread_(&Heartbeats::Run, state_) {
  ::pthread_setname_np(thread_.native_handle(), "luwu-beat");
}

Heartbeats::~Heartbeats() { Stop(); }

void Heartbeats::Stop() {
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
    state_->listener = nullptr;
    state_->changed.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Heartbeats::Add(uint32_t node, NodeRpc* rpc, uint32_t heartbeat_ms) {
  MutexLock lock(state_->mutex);
  Peer& peer = state_->peers[node];
  peer.rpc = rpc;
  peer.interval_ms = std::max<uint64_t>(heartbeat_ms, kIntervalMsMin);
  peer.due = std::chrono::steady_clock::now();
  state_->changed.NotifyAll();
}

void Heartbeats::Ask(uint32_t node) {
  MutexLock lock(state_->mutex);
  const auto found = state_->peers.find(node);
  if (found == state_->peers.end()) return;
  found->second.due = std::chrono::steady_clock::now();
  state_->changed.NotifyAll();
}

void Heartbeats::Watch(Listener on_end) {
  MutexLock lock(state_->mutex);
  if (state_->stopping) return;
  state_->listener = std::move(on_end);
  state_->Tell();
}

void Heartbeats::Run(const std::shared_ptr<State>& state) {
  while (true) {
    uint32_t node = 0;
    NodeRpc* rpc = nullptr;
    TimePoint answer_by;
    {
      MutexLock lock(state->mutex);
      while (true) {
        if (state->stopping) return;
        const TimePoint now = std::chrono::steady_clock::now();
        TimePoint wake_at = now + Milliseconds(kIdleMs);
        if (const std::optional<uint32_t> due = state->NextDue(now, &wake_at)) {
          Peer& peer = state->peers[*due];
          peer.in_flight = true;
          // From the sending on: a slow answer must not make the next one late.
          peer.due = now + Milliseconds(peer.interval_ms);
          answer_by = now + Milliseconds(std::max(peer.interval_ms, kAnswerMsMin));
          node = *due;
          rpc = peer.rpc;
          break;
        }
        state->changed.WaitUntil(state->mutex, wake_at);
      }
    }
    rpc->Heartbeat(answer_by, [state, node](const StatusOr<uint64_t>& reply) {
      OnReply(*state, node, reply.status());
    });
  }
}

void Heartbeats::OnReply(State& state, uint32_t node, const Status& status) {
  MutexLock lock(state.mutex);
  state.peers[node].in_flight = false;
  if (state.ended.ok() && EndsSession(CodeOf(status))) {
    state.ended = status;
    state.Tell();
  }
  state.changed.NotifyAll();
}

}  // namespace luwu::client
