#include "client/src/session.h"

#include <utility>

#include "common/base/log.h"

namespace luwu::client {
namespace {

constexpr uint64_t kFarewellMs = 1000;

Status SessionClosed() { return Error(ErrorCode::kCancelled, "the session was closed"); }

}  // namespace

Session::Session(SessionParts parts)
    : dialler_(std::move(parts.dialler)),
      fabric_(std::move(parts.fabric)),
      fetch_(fabric_.get()),
      push_(fabric_.get()),
      device_(fabric_.get(), &fetch_, &push_),
      keeper_(fabric_.get(), &push_, parts.heartbeats.get()),
      rpcs_(std::move(parts.rpcs)),
      heartbeats_(std::move(parts.heartbeats)),
      inquiry_(fabric_.get(), &rpcs_, {.lead = parts.lead, .lineage = parts.lineage}),
      step_(fabric_.get(), &rpcs_),
      tensors_(fabric_.get(), &rpcs_),
      created_(parts.created),
      loaded_(parts.loaded),
      fetch_lane_("luwu-fetch"),
      push_lane_("luwu-push") {
  heartbeats_->Watch([fabric = fabric_.get()](const Status& why) {
    MonitorLock lock(fabric->monitor());
    fabric->Fail(lock, why);
  });
}

Session::~Session() {
  constexpr bool kFarewell = false;
  Close(kFarewell);
}

Status Session::Warm() {
  push_.TakeContext();
  return fetch_.Warm();
}

Status Session::CheckLayer(uint32_t layer) const {
  if (layer < spec().layers.size()) return OkStatus();
  return Error(ErrorCode::kInvalidArgument, "layer {} does not exist: job '{}' has {} layers",
               layer, spec().name, spec().layers.size());
}

Status Session::Health() {
  MonitorLock lock(fabric_->monitor());
  return fabric_->Health(lock);
}

void Session::FinishOperation(Operation& operation, const Status& status) {
  fabric_->counters().operations.fetch_sub(1, std::memory_order_relaxed);
  operation.Finish(status);
}

Status Session::SubmitFetch(const std::shared_ptr<Operation>& operation, Work work) {
  fabric_->counters().operations.fetch_add(1, std::memory_order_relaxed);
  const Status submitted =
      fetch_lane_.Submit([this, operation, work = std::move(work)](bool cancelled) {
        FinishOperation(*operation, cancelled ? SessionClosed() : work());
      });
  if (!submitted.ok()) fabric_->counters().operations.fetch_sub(1, std::memory_order_relaxed);
  return submitted;
}

Status Session::SubmitPush(const std::shared_ptr<Operation>& operation, const PushCall& call,
                           Work work) {
  RETURN_IF_ERROR(push_.Queue(call.layer, call.close));
  fabric_->counters().operations.fetch_add(1, std::memory_order_relaxed);
  const Status submitted =
      push_lane_.Submit([this, operation, work = std::move(work)](bool cancelled) {
        const Status status = cancelled ? SessionClosed() : work();
        push_.EndQueued();
        FinishOperation(*operation, status);
      });
  if (submitted.ok()) return submitted;
  push_.Unqueue(call.layer, call.close);
  fabric_->counters().operations.fetch_sub(1, std::memory_order_relaxed);
  return submitted;
}

Status Session::StartFetch(const std::shared_ptr<Operation>& operation, const FetchCall& call,
                           std::vector<Segment> segments) {
  return SubmitFetch(operation, [this, call, segments = std::move(segments)]() mutable {
    FetchEngine::Loan context = fetch_.TakeContext();
    context->segments.swap(segments);
    return Explain(fetch_.Fetch(call, *context));
  });
}

Status Session::StartPush(const std::shared_ptr<Operation>& operation, PushCall call,
                          std::vector<Segment> segments) {
  call.queued = true;
  return SubmitPush(operation, call, [this, call, segments = std::move(segments)]() mutable {
    PushEngine::Loan context = push_.TakeContext();
    context->batch.segments.swap(segments);
    return Explain(push_.Push(call, *context));
  });
}

StatusOr<std::shared_ptr<InPlaceOperation>> Session::BeginInPlace(const InPlaceCall& call) {
  const PushCall push{
      .layer = call.layer, .close = call.close, .deadline = DeadlineAfter(call.timeout_ms)};
  ASSIGN_OR_RETURN(std::unique_ptr<SlotRun> run,
                   push_.BeginInPlace(push, call.offset, call.pieces_max));
  fabric_->counters().operations.fetch_add(1, std::memory_order_relaxed);
  return std::make_shared<InPlaceOperation>(shared_from_this(), std::move(run), call.timeout_ms);
}

void Session::AbandonInPlace(InPlaceOperation& operation) {
  push_.AbandonInPlace(operation.run());
  FinishOperation(operation, Error(ErrorCode::kCancelled, "given up before it was sent"));
}

void Session::EndInPlace(const std::shared_ptr<InPlaceOperation>& operation) {
  const TimePoint deadline = DeadlineAfter(operation->timeout_ms());
  const auto finish = [this, operation, deadline] {
    FinishOperation(*operation, Explain(push_.FinishInPlace(operation->run(), deadline)));
  };
  // Over shared memory everything has arrived by now; else the lane waits for it.
  if (push_.SendInPlace(operation->run())) {
    finish();
  } else if (!push_lane_.Submit([finish](bool) { finish(); }).ok()) {
    finish();
  }
}

Status Session::FinishLoad(bool allow_missing, TimePoint deadline) {
  RETURN_IF_ERROR(tensors_.FinishLoad(allow_missing, deadline));
  loaded_ = true;
  return OkStatus();
}

Status Session::AwaitLoaded(TimePoint deadline) {
  RETURN_IF_ERROR(fetch_.AwaitLoaded(deadline));
  loaded_ = true;
  return OkStatus();
}

std::string Session::StatusJson(TimePoint deadline) {
  std::vector<NodeRpc*> rpcs;
  for (const auto& rpc : rpcs_) rpcs.push_back(rpc.get());
  return ClusterStatusJson(rpcs, fabric_->plan().nodes(), deadline);
}

SessionInfo Session::Info() {
  const Counters& counters = fabric_->counters();
  SessionInfo info;
  info.nodes = static_cast<uint32_t>(fabric_->active().size());
  info.fetched_bytes = counters.fetched_bytes;
  info.pushed_bytes = counters.pushed_bytes;
  info.retries = counters.retries;
  info.operations = counters.operations;
  info.created = created_;
  info.loaded = loaded_;
  info.rolled_back_step = inquiry_.step();
  for (const uint32_t node : fabric_->active()) info.shm_nodes += fabric_->node(node).is_shm();
  MonitorLock lock(fabric_->monitor());
  info.current_step = fabric_->progress(lock).current_step();
  return info;
}

void Session::Close(bool farewell) {
  MutexLock close_lock(close_mutex_);
  if (closed_) return;
  closed_ = true;
  {
    MonitorLock lock(fabric_->monitor());
    fabric_->Fail(lock, SessionClosed());
  }
  for (const auto& rpc : rpcs_) rpc->Shutdown();
  std::vector<uint32_t> reachable;
  for (const uint32_t node : fabric_->active()) {
    {
      MonitorLock lock(fabric_->monitor());
      if (!fabric_->node(node).is_down(lock)) reachable.push_back(node);
    }
    fabric_->node(node).Shutdown();
  }
  device_.Cancel();
  fetch_lane_.Stop();
  push_lane_.Stop();
  keeper_.Stop();
  heartbeats_->Stop();
  if (farewell) {
    FanOut<Nothing>(reachable.size(), [&](size_t i, NodeRpc::Done<Nothing> done) {
      rpcs_[reachable[i]]->CloseSession(DeadlineAfter(kFarewellMs), std::move(done));
    });
  }
  LogInfo("session_closed", "job={} rank={}", spec().name, fabric_->options().rank);
}

}  // namespace luwu::client
