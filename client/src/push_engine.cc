#include "client/src/push_engine.h"

#include <algorithm>
#include <utility>

#include "common/wire/slot_trailer.h"

namespace luwu::client {

struct PushEngine::Action {
  enum class Kind { kDone, kNew, kAgain } kind = Kind::kDone;
  SlotRequest* request = nullptr;
  const ShardPlan* shard = nullptr;
  std::shared_ptr<Link> link;
};

PushEngine::PushEngine(Fabric* fabric) : fabric_(fabric), requests_(fabric->plan().nodes().size()) {
  for (const uint32_t node : fabric->active()) {
    for (uint32_t slot = 0; slot < fabric->plan().spec().slots_per_worker; ++slot) {
      requests_[node].push_back(std::make_unique<SlotRequest>(fabric, node, slot));
    }
  }
}

PushEngine::Loan PushEngine::TakeContext() {
  return contexts_.Take([this] { return std::make_unique<PushContext>(*fabric_); });
}

Status PushEngine::Queue(uint32_t layer, bool close) {
  MonitorLock lock(fabric_->monitor());
  RETURN_IF_ERROR(fabric_->Health(lock));
  RETURN_IF_ERROR(fabric_->progress(lock).Queue(layer, close));
  fabric_->progress(lock).AddPending();
  return OkStatus();
}

void PushEngine::Unqueue(uint32_t layer, bool close) {
  MonitorLock lock(fabric_->monitor());
  fabric_->progress(lock).Unqueue(layer, close);
  fabric_->progress(lock).RemovePending();
  fabric_->monitor().Broadcast(lock);
}

void PushEngine::EndQueued() {
  MonitorLock lock(fabric_->monitor());
  fabric_->progress(lock).RemovePending();
  fabric_->monitor().Broadcast(lock);
}

Status PushEngine::Push(const PushCall& call, PushContext& context) {
  return Execute(call, PushKind::kCopy, context);
}

Status PushEngine::Push(const PushCall& call, PushContext& context, PushParts& parts) {
  return Execute(call, PushKind::kCopy, context, &parts);
}

Status PushEngine::CloseLayer(const PushCall& call, PushContext& context) {
  context.batch.segments.clear();
  return Execute(call, PushKind::kClose, context);
}

// Waits until no earlier contribution to the layer is at work.
Status PushEngine::AwaitTurn(const MonitorLock& lock, const PushCall& call, Waiter& waiter) {
  const StepProgress& progress = fabric_->progress(lock);
  const auto must_wait = [&] {
    return progress.is_busy(call.layer) || (!call.queued && progress.has_queued(call.layer));
  };
  while (must_wait()) {
    RETURN_IF_ERROR(fabric_->Health(lock));
    if (std::chrono::steady_clock::now() >= call.deadline) {
      return Error(ErrorCode::kDeadline,
                   "layer '{}' is still being pushed by an earlier call; wait for it first",
                   fabric_->plan().spec().layers[call.layer].name);
    }
    fabric_->WaitForChange(lock, waiter, call.deadline);
  }
  return fabric_->Health(lock);
}

Status PushEngine::Start(const PushCall& call, PushKind kind, Waiter& waiter, Job* job) {
  MonitorLock lock(fabric_->monitor());
  StepProgress& progress = fabric_->progress(lock);
  const Status turn = AwaitTurn(lock, call, waiter);
  if (call.queued) progress.Unqueue(call.layer, call.close);
  RETURN_IF_ERROR(turn);
  RETURN_IF_ERROR(progress.CheckPush(call.layer));
  RETURN_IF_ERROR(progress.Start(call.layer, kind, call.close));
  job->plan = &fabric_->plan().layers()[call.layer];
  job->kind = kind;
  job->call = call;
  job->step = *progress.open_step();
  job->micro_step = progress.micro_step(call.layer);
  return OkStatus();
}

Status PushEngine::Execute(const PushCall& call, PushKind kind, PushContext& context,
                           PushParts* parts) {
  Job job;
  context.batch.error = OkStatus();
  context.batch.sent = false;
  RETURN_IF_ERROR(Start(call, kind, context.batch.waiter, &job));
  std::fill(context.cursors.begin(), context.cursors.end(), 0);
  job.batch = &context.batch;
  job.cursors = &context.cursors;
  const Status status = parts == nullptr ? Run(job) : RunParts(job, context, *parts);
  if (!status.ok()) Drain(context.batch);
  MonitorLock lock(fabric_->monitor());
  fabric_->progress(lock).Finish(call.layer, context.batch.sent, status.ok());
  fabric_->monitor().Broadcast(lock);
  return status;
}

// Each part is out of our memory, and in the daemons', before the next one is asked for.
Status PushEngine::RunParts(Job& job, PushContext& context, PushParts& parts) {
  while (true) {
    ASSIGN_OR_RETURN(const bool more, parts.Next(&context.batch.segments, &job.shards));
    if (!more) return OkStatus();
    job.cursors = &context.cursors;
    RETURN_IF_ERROR(Run(job));
  }
}

Status PushEngine::Run(Job& job) {
  while (true) {
    Action action;
    {
      MonitorLock lock(fabric_->monitor());
      RETURN_IF_ERROR(NextAction(lock, job, &action));
    }
    if (action.kind == Action::Kind::kDone) return OkStatus();
    Perform(job, action);
  }
}

// Waits until there is something to send, everything has arrived, or nothing can go on.
Status PushEngine::NextAction(const MonitorLock& lock, Job& job, Action* action) {
  while (true) {
    RETURN_IF_ERROR(fabric_->Health(lock));
    RETURN_IF_ERROR(job.batch->error);
    Status error;
    TimePoint wake_at = job.call.deadline;
    if (TakeFailed(lock, job, action, &error, &wake_at)) return error;
    if (job.cursors != nullptr && TakeNew(lock, job, action, &error)) return error;
    if (action->kind == Action::Kind::kDone && job.batch->outstanding_total == 0 &&
        job.batch->failed == nullptr && job.cursors == nullptr) {
      return OkStatus();
    }
    RETURN_IF_ERROR(fabric_->CheckAllNodes(lock));
    if (std::chrono::steady_clock::now() >= job.call.deadline) return DeadlineError(lock, job);
    fabric_->WaitForChange(lock, job.batch->waiter, wake_at);
  }
}

// True when a slot whose request failed can be sent again now (or an error is set).
bool PushEngine::TakeFailed(const MonitorLock& lock, Job& job, Action* action, Status* error,
                            TimePoint* wake_at) {
  const TimePoint now = std::chrono::steady_clock::now();
  SlotRequest** at = &job.batch->failed;
  while (*at != nullptr) {
    SlotRequest* request = *at;
    NodeLink& node = fabric_->node(request->node());
    if (*error = fabric_->CheckNode(lock, request->node()); !error->ok()) return true;
    if (node.ledger(lock).IsConsumed(request->slot(), node.board())) {
      *at = request->next_failed;
      request->AcceptAsDelivered(lock);
      continue;
    }
    std::shared_ptr<Link> link = node.link(lock);
    if (link == nullptr) job.blocked_node = request->node();
    if (link != nullptr && now < request->retry_at)
      *wake_at = std::min(*wake_at, request->retry_at);
    if (link == nullptr || now < request->retry_at) {
      at = &request->next_failed;
      continue;
    }
    *at = request->next_failed;
    request->BeginPost(lock, job.batch);
    fabric_->counters().retries.fetch_add(1, std::memory_order_relaxed);
    *action = {Action::Kind::kAgain, request, nullptr, std::move(link)};
    return true;
  }
  return false;
}

// True when a shard that has not been sent yet got a slot (or an error is set). Goes round the
// nodes, so that one node without credit does not hold up the others.
bool PushEngine::TakeNew(const MonitorLock& lock, Job& job, Action* action, Status* error) {
  StepProgress& progress = fabric_->progress(lock);
  const auto& by_node = job.plan->by_node;
  bool left = false;
  for (size_t turn = 0; turn < by_node.size(); ++turn) {
    const size_t place = (job.next_node + turn) % by_node.size();
    const LayerPlan::NodeShards& here = by_node[place];
    uint32_t& cursor = (*job.cursors)[here.node];
    while (cursor < here.shards.size() &&
           (here.shards[cursor] < job.shards.first ||
            progress.IsDelivered(job.call.layer, here.shards[cursor]))) {
      ++cursor;
    }
    if (cursor >= here.shards.size() || here.shards[cursor] >= job.shards.end) continue;
    left = true;
    if (*error = fabric_->CheckNode(lock, here.node); !error->ok()) return true;
    NodeLink& node = fabric_->node(here.node);
    std::shared_ptr<Link> link = node.link(lock);
    const bool whole = job.kind == PushKind::kClose;
    const uint32_t shard = whole ? kAllShards : here.shards[cursor];
    const SlotKey key{job.call.layer, shard, job.micro_step, job.step};
    std::optional<uint32_t> slot;
    if (link != nullptr) slot = node.ledger(lock).Take(key, node.board());
    if (!slot) {
      job.blocked_node = here.node;
      continue;
    }
    SlotRequest* request = requests_[here.node][*slot].get();
    request->BeginPost(lock, job.batch);
    *action = {Action::Kind::kNew, request, whole ? nullptr : &job.plan->shards[shard],
               std::move(link)};
    cursor = whole ? static_cast<uint32_t>(here.shards.size()) : cursor + 1;
    job.next_node = (place + 1) % by_node.size();
    return true;
  }
  if (!left) job.cursors = nullptr;
  return false;
}

void PushEngine::Perform(Job& job, const Action& action) {
  if (action.kind == Action::Kind::kNew) {
    const uint32_t shard = action.shard == nullptr ? kAllShards : action.shard->shard;
    action.request->Fill({.key = {job.call.layer, shard, job.micro_step, job.step},
                          .shard = action.shard,
                          .close = job.call.close},
                         *job.batch, *action.link);
  }
  action.request->Post(*job.batch, *action.link);
  // A transport may fail requests without an event; the keeper must hear of it.
  if (!action.link->endpoint().connected()) {
    fabric_->node(action.request->node())
        .Abort(action.link, Error(ErrorCode::kUnavailable, "the data link failed"));
  }
}

Status PushEngine::DeadlineError(const MonitorLock& lock, const Job& job) {
  if (const auto down = fabric_->FirstDown(lock)) return *down;
  if (job.cursors != nullptr) {
    for (const LayerPlan::NodeShards& here : job.plan->by_node) {
      const uint32_t cursor = (*job.cursors)[here.node];
      if (here.node != job.blocked_node || cursor >= here.shards.size()) continue;
      return NoSlotError(lock, job.call.layer, job.plan->shards[here.shards[cursor]]);
    }
  }
  return Error(ErrorCode::kDeadline,
               "push of layer '{}': {} of its slots are not confirmed yet; repeat the call",
               fabric_->plan().spec().layers[job.call.layer].name, job.batch->outstanding_total);
}

// Whom the daemon waits for only the daemon knows.
Status PushEngine::NoSlotError(const MonitorLock& lock, uint32_t layer, const ShardPlan& shard) {
  if (const auto down = fabric_->FirstDown(lock)) return *down;
  NodeLink& node = fabric_->node(shard.node);
  return Error(
      ErrorCode::kDeadline,
      "push of layer '{}', shard {}: no free slot at {}: all {} slots of this worker there "
      "hold gradients that the daemon has not added up yet; `luwuctl status` shows what "
      "the job waits for; repeat the call",
      fabric_->plan().spec().layers[layer].name, shard.shard, node.Name(),
      node.ledger(lock).slots());
}

void PushEngine::Drain(SlotBatch& batch) {
  for (const uint32_t node : fabric_->active()) {
    std::shared_ptr<Link> link;
    {
      MonitorLock lock(fabric_->monitor());
      if (batch.outstanding[node] > 0) link = fabric_->node(node).link(lock);
    }
    // The only way to take a request back is to end its link.
    if (link != nullptr) {
      fabric_->node(node).Abort(link,
                                Error(ErrorCode::kUnavailable, "a push ended at its deadline"));
    }
  }
  MonitorLock lock(fabric_->monitor());
  while (batch.outstanding_total > 0) {
    constexpr uint64_t kRecheckMs = 1000;
    batch.waiter.WaitUntil(lock, DeadlineAfter(kRecheckMs));
  }
  for (SlotRequest* request = batch.failed; request != nullptr; request = request->next_failed) {
    NodeLink& node = fabric_->node(request->node());
    if (node.ledger(lock).IsConsumed(request->slot(), node.board())) {
      request->AcceptAsDelivered(lock);
    } else {
      node.ledger(lock).LeaveInDoubt(request->slot());
    }
  }
  batch.failed = nullptr;
}

void PushEngine::Renotify(uint32_t index) {
  NodeLink& node = fabric_->node(index);
  for (auto& request : requests_[index]) {
    std::shared_ptr<Link> link;
    {
      MonitorLock lock(fabric_->monitor());
      link = node.link(lock);
      if (link == nullptr) return;
      if (!node.ledger(lock).BeginRenotify(request->slot(), node.board())) continue;
    }
    request->PostRenotify(*link);
  }
}

}  // namespace luwu::client
