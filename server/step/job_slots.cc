// What arrives in the slots. Runs on the data plane's progress thread; everything in a slot is
// hostile until it has been checked, in the order that docs/PROTOCOL.md section 4 gives.
#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"
#include "server/step/slot_check.h"

namespace luwu {

void JobImpl::OnSlot(Session& session, uint32_t slot) {
  JobEffects effects;
  const Status fault = ReceiveSlot(session, slot, &effects);
  if (!fault.ok()) {
    MutexLock lock(mutex_);
    EndWithFault(session, fault, &effects);
  }
  effects.Run();
}

Status JobImpl::ReceiveSlot(Session& session, uint32_t slot, JobEffects* effects) {
  if (slot >= spec().slots_per_worker) {
    return Error(ErrorCode::kInvalidArgument, "a doorbell for slot {}; the inbox has {} slots",
                 slot, spec().slots_per_worker);
  }
  const uint64_t slot_bytes = plan_->map.slot_bytes();
  const ConstByteSpan bytes = session.inbox().subspan(slot * slot_bytes, slot_bytes);
  SlotTrailer trailer;  // a copy: the worker may write the slot while we look at it
  // A late doorbell of the slot's former use, while the worker seals the next one.
  if (!LoadSlotTrailer(bytes.last(kSlotTrailerBytes), &trailer)) return OkStatus();
  RETURN_IF_ERROR(CheckSlotTrailer(trailer));
  RETURN_IF_ERROR(CheckSlotOrigin(*plan_, session, trailer));
  {
    MutexLock lock(mutex_);
    if (!IsCurrent(session)) return OkStatus();  // fenced, or already at fault
    ASSIGN_OR_RETURN(const bool repeat, IsRepeat(ranks_[session.identity().rank], slot, trailer));
    if (repeat) return OkStatus();
  }
  RETURN_IF_ERROR(CheckSlotTarget(*plan_, trailer));
  if ((trailer.flags & kSlotPayloadCrc) != 0) {
    const uint64_t first = SlotPayloadOffset(slot_bytes, trailer.payload_bytes);
    const uint32_t crc = Crc32c(bytes.subspan(first, trailer.payload_bytes));
    if (crc != trailer.payload_crc32c) {
      return Error(
          ErrorCode::kCorrupt,
          "payload of layer {} shard {} step {}: CRC32C {:#010x}, the trailer says {:#010x}",
          trailer.layer, trailer.shard, trailer.step, crc, trailer.payload_crc32c);
    }
  }
  MutexLock lock(mutex_);
  if (!IsCurrent(session)) return OkStatus();
  return Accept(trailer, slot, effects);
}

// A doorbell may ring twice for one use of a slot, and late.
StatusOr<bool> JobImpl::IsRepeat(const Rank& rank, uint32_t slot, const SlotTrailer& trailer) {
  const uint32_t released = rank.slots.released(slot);
  if (trailer.slot_sequence > released) {
    return Error(ErrorCode::kInvalidArgument,
                 "slot {} was used {} times before according to its trailer, but has been given "
                 "back {} times only",
                 slot, trailer.slot_sequence, released);
  }
  return trailer.slot_sequence < released || rank.slots.held(slot);
}

Status JobImpl::Accept(const SlotTrailer& trailer, uint32_t slot, JobEffects* effects) {
  Rank& rank = ranks_[trailer.rank];
  if (trailer.step < gate_.step() || state_ == JobState::kFailed) {
    ++counters_.duplicates;  // of a restarted worker, for a shard that has been updated
    ReleaseSlot(trailer.rank, slot, effects);
    return OkStatus();
  }
  if (trailer.step > gate_.step() || rank.begun_step != trailer.step) {
    return Error(ErrorCode::kStepMismatch,
                 "a gradient of step {}: the job is at step {}, and this worker has begun {}",
                 trailer.step, gate_.step(),
                 rank.begun_step ? fmt::format("step {}", *rank.begun_step) : "none");
  }
  ShardMap::IndexRange range = plan_->map.LayerRange(trailer.layer);
  if (trailer.shard != kAllShards) {
    const uint32_t index = *plan_->map.IndexOf(trailer.layer, trailer.shard);
    range = {index, index + 1};
  }
  bool parked = false;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    RETURN_IF_ERROR(AcceptForShard(trailer, slot, i, &parked));
  }
  if (!parked) ReleaseSlot(trailer.rank, slot, effects);
  for (uint32_t i = range.begin; i < range.end; ++i) Advance(shards_[i], effects);
  MakeRoom(trailer.rank);
  EndIfStuck(trailer.rank, effects);
  return OkStatus();
}

Status JobImpl::AcceptForShard(const SlotTrailer& trailer, uint32_t slot, uint32_t index,
                               bool* parked) {
  using Verdict = ShardProgress::Verdict;
  JobShard& shard = shards_[index];
  Rank& rank = ranks_[trailer.rank];
  const bool has_payload = (trailer.flags & kSlotNoPayload) == 0;
  const bool was_done = shard.progress.RankDone(trailer.rank);
  Verdict payload = Verdict::kDuplicate;
  Verdict close = Verdict::kDuplicate;
  if (has_payload) {
    payload = shard.progress.AddPayload({trailer.micro_step, trailer.rank, slot, kNowhere});
  }
  if (payload == Verdict::kAccepted) {
    *parked = true;
    rank.slots.Hold(slot, index);
    rank.session->CountPushed(trailer.payload_bytes);
  }
  if (payload != Verdict::kBeyondClose && (trailer.flags & kSlotClose) != 0) {
    close = shard.progress.Close(trailer.rank, trailer.micro_step + (has_payload ? 1 : 0));
  }
  if (!was_done && shard.progress.RankDone(trailer.rank)) gate_.RankClosedShard(trailer.rank);
  if (payload == Verdict::kBeyondClose || close == Verdict::kBeyondClose) {
    return Error(
        ErrorCode::kLayerClosed,
        "layer {} '{}' shard {} step {}: micro-step {} contradicts what rank {} has pushed "
        "and closed before",
        trailer.layer, spec().layers[trailer.layer].name, plan_->map.shards()[index].shard,
        trailer.step, trailer.micro_step, trailer.rank);
  }
  if (payload == Verdict::kDuplicate && close == Verdict::kDuplicate) ++counters_.duplicates;
  return OkStatus();
}

void JobImpl::EndWithFault(Session& session, const Status& fault, JobEffects* effects) {
  const Rank& rank = ranks_[session.identity().rank];
  if (rank.session.get() != &session) return;
  ++counters_.rejected_slots;
  if (!session.EndWithFault(fault)) return;
  LogWarning("worker_fault", "job={} rank={} pid={} fault=\"{}\"", spec().name,
             session.identity().rank, session.identity().pid, ToString(fault));
  effects->FlushBoard(rank.session);
  SettleWaiters(effects);
}

}  // namespace luwu
