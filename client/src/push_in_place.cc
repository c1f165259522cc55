// Pushes whose payload the caller writes straight into the slots.
#include <algorithm>
#include <utility>

#include "client/src/push_engine.h"
#include "common/wire/slot_trailer.h"

namespace luwu::client {

StatusOr<std::unique_ptr<SlotRun>> PushEngine::BeginInPlace(const PushCall& call, uint64_t offset,
                                                            uint32_t pieces_max) {
  const JobSpec& spec = fabric_->plan().spec();
  const LayerSpec& layer = spec.layers[call.layer];
  if (offset % spec.shard_elements != 0 || offset >= layer.elements) {
    return Error(ErrorCode::kInvalidArgument,
                 "offset {} of layer '{}' ({} elements) is not the start of a shard: it must be a "
                 "multiple of shard_elements, {}",
                 offset, layer.name, layer.elements, spec.shard_elements);
  }
  auto run = std::make_unique<SlotRun>(*fabric_);
  run->pieces.reserve(pieces_max);
  Job job;
  RETURN_IF_ERROR(Start(call, PushKind::kInPlace, run->batch.waiter, &job));
  run->layer = call.layer;
  run->close = call.close;
  run->step = job.step;
  run->micro_step = job.micro_step;
  const auto first_shard = static_cast<uint32_t>(offset / spec.shard_elements);
  const Status reserved = ReserveRun(*run, job, first_shard, pieces_max);
  if (reserved.ok()) return run;
  MonitorLock lock(fabric_->monitor());
  constexpr bool kSent = false;
  constexpr bool kDelivered = false;
  fabric_->progress(lock).Finish(call.layer, kSent, kDelivered);
  return reserved;
}

Status PushEngine::ReserveRun(SlotRun& run, const Job& job, uint32_t first_shard,
                              uint32_t pieces_max) {
  MonitorLock lock(fabric_->monitor());
  const std::vector<ShardPlan>& shards = job.plan->shards;
  while (true) {
    RETURN_IF_ERROR(fabric_->Health(lock));
    while (run.pieces.size() < pieces_max && first_shard + run.pieces.size() < shards.size()) {
      StatusOr<bool> reserved = Reserve(lock, run, shards[first_shard + run.pieces.size()]);
      if (!reserved.ok() && run.pieces.empty()) return reserved.status();
      if (!reserved.ok() || !*reserved) break;
    }
    if (!run.pieces.empty()) return OkStatus();
    RETURN_IF_ERROR(fabric_->CheckAllNodes(lock));
    if (std::chrono::steady_clock::now() >= job.call.deadline) {
      return NoSlotError(lock, job.call.layer, shards[first_shard]);
    }
    fabric_->WaitForChange(lock, run.batch.waiter, job.call.deadline);
  }
}

StatusOr<bool> PushEngine::Reserve(const MonitorLock& lock, SlotRun& run, const ShardPlan& shard) {
  StepProgress& progress = fabric_->progress(lock);
  if (progress.IsDelivered(run.layer, shard.shard) || progress.IsReserved(run.layer, shard.shard)) {
    return Error(ErrorCode::kState,
                 "shard {} of layer '{}' is already part of this contribution; push the others, "
                 "and wait for all before the next micro-batch",
                 shard.shard, fabric_->plan().spec().layers[run.layer].name);
  }
  RETURN_IF_ERROR(fabric_->CheckNode(lock, shard.node));
  NodeLink& node = fabric_->node(shard.node);
  std::shared_ptr<Link> link = node.link(lock);
  if (link == nullptr) return false;
  const SlotKey key{run.layer, shard.shard, run.micro_step, run.step};
  const std::optional<uint32_t> slot = node.ledger(lock).Take(key, node.board());
  if (!slot) return false;
  const uint64_t bytes = shard.range.elements * DTypeBytes(fabric_->plan().spec().gradient_dtype);
  const ByteSpan memory = node.SlotMemory(*link, *slot);
  run.pieces.push_back({.request = requests_[shard.node][*slot].get(),
                        .shard = &shard,
                        .link = std::move(link),
                        .payload = memory.subspan(SlotPayloadOffset(memory.size(), bytes), bytes)});
  progress.SetReserved(run.layer, shard.shard, true);
  return true;
}

void PushEngine::AbandonInPlace(SlotRun& run) {
  MonitorLock lock(fabric_->monitor());
  StepProgress& progress = fabric_->progress(lock);
  for (const SlotRun::Piece& piece : run.pieces) {
    // In doubt, not free: an earlier attempt may have sent it.
    fabric_->node(piece.shard->node).ledger(lock).LeaveInDoubt(piece.request->slot());
    progress.SetReserved(run.layer, piece.shard->shard, false);
  }
  progress.Finish(run.layer, run.batch.sent, false);
}

bool PushEngine::SendInPlace(SlotRun& run) {
  {
    MonitorLock lock(fabric_->monitor());
    fabric_->progress(lock).AddPending();
  }
  for (const SlotRun::Piece& piece : run.pieces) {
    std::shared_ptr<Link> link;
    {
      MonitorLock lock(fabric_->monitor());
      link = fabric_->node(piece.shard->node).link(lock);
      piece.request->BeginPost(lock, &run.batch);
    }
    piece.request->Fill({.key = {run.layer, piece.shard->shard, run.micro_step, run.step},
                         .shard = piece.shard,
                         .close = run.close,
                         .in_place = true},
                        run.batch, *piece.link);
    if (link != nullptr) {
      piece.request->Post(run.batch, *link);
    } else {
      piece.request->Complete(Error(ErrorCode::kUnavailable, "the data link is down"));
    }
  }
  MonitorLock lock(fabric_->monitor());
  return run.batch.outstanding_total == 0 && run.batch.failed == nullptr;
}

Status PushEngine::FinishInPlace(SlotRun& run, TimePoint deadline) {
  Job job;
  job.plan = &fabric_->plan().layers()[run.layer];
  job.kind = PushKind::kInPlace;
  job.call = {.layer = run.layer, .close = run.close, .deadline = deadline};
  job.batch = &run.batch;
  const Status status = Run(job);
  if (!status.ok()) Drain(run.batch);
  MonitorLock lock(fabric_->monitor());
  StepProgress& progress = fabric_->progress(lock);
  for (const SlotRun::Piece& piece : run.pieces) {
    progress.SetReserved(run.layer, piece.shard->shard, false);
  }
  const bool delivered = !progress.AnyReserved(run.layer) && progress.AllDelivered(run.layer);
  progress.Finish(run.layer, run.batch.sent, delivered);
  progress.RemovePending();
  fabric_->monitor().Broadcast(lock);
  return status;
}

}  // namespace luwu::client
