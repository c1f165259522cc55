// The pipeline of a shard: receive (job_slots.cc) -> get ready for the decision: update, hold the
// sum, or carry over -> settle and publish (job_settle.cc), with folds and copies on the side when
// a worker runs out of slots (job_room.cc). Decides under the job's lock what a shard's task does
// next; the task itself runs on an update thread without it.
#include <chrono>
#include <cstring>

#include "common/base/check.h"
#include "server/step/job_impl.h"

namespace luwu {

void JobShard::Run() { job->RunTask(*this); }

void JobImpl::Advance(JobShard& shard, JobEffects* effects) {
  using Activity = JobShard::Activity;
  if (shard.activity != Activity::kIdle || !shutdown_.ok()) return;
  Activity next = Activity::kUpdate;
  const bool settles = shard.settle != JobShard::Settle::kNone;
  if (settles) {
    if (shard.settle == JobShard::Settle::kCarry) next = Activity::kCarry;
  } else {
    if (shard.ready || !shard.progress.complete()) return;
    if (!gate_.non_finite().empty()) {
      // The step cannot be applied any more: no use in computing the rest of it.
      shard.awaits_reader = shard.awaits_state = false;
      store_->Pass(shard.index);
      shard.progress.TakeAll(&shard.taken);
      ReleaseTaken(shard, effects);
      MarkReady(shard, effects);
      return;
    }
    const bool absent = shard.progress.parked().empty() && !shard.has_sum();
    if (spec().update_mode == UpdateMode::kDeferred) next = Activity::kHold;
    if (absent) next = Activity::kCarry;
  }
  shard.awaits_reader = AwaitsReader(shard, next);
  if (shard.awaits_reader) return;
  shard.awaits_state = next == Activity::kUpdate && !store_->Request(shard.index);
  if (shard.awaits_state) return;
  if (!settles) {
    gate_.NoteUpdateBegun();
    shard.progress.TakeAll(&shard.taken);
    shard.absent = next == Activity::kCarry;
  }
  PinSources(shard);
  Submit(shard, next);
}

// Whether somebody still reads what `next` would write.
bool JobImpl::AwaitsReader(const JobShard& shard, JobShard::Activity next) const {
  if (next == JobShard::Activity::kHold) return false;
  const uint64_t generation = KeepsUndoState(spec()) ? shard.flips + 1 : shard.flips;
  const bool state = next == JobShard::Activity::kUpdate && store_->resident(shard.index) &&
                     shard.readers[generation % 2] > 0;
  const uint64_t settled = shard.settle == JobShard::Settle::kNone ? 1 : 0;
  return state || shard.served_readers[(gate_.step() + settled) % 2] > 0;
}

void JobImpl::PinSources(JobShard& shard) {
  shard.sources.clear();
  for (const Contribution& taken : shard.taken) {
    shard.sources.push_back({BytesOf(shard, taken), taken.rank, taken.micro_step});
    if (taken.slot != kNowhere) ranks_[taken.rank].slots.Pin(taken.slot);
  }
}

std::byte* JobImpl::BytesOf(const JobShard& shard, const Contribution& contribution) const {
  if (contribution.block != kNowhere) return overflow_.data(contribution.block);
  const uint64_t slot_bytes = plan_->map.slot_bytes();
  const uint64_t payload_bytes =
      plan_->map.shards()[shard.index].elements * DTypeBytes(spec().gradient_dtype);
  return ranks_[contribution.rank].inbox->span().data() + contribution.slot * slot_bytes +
         SlotPayloadOffset(slot_bytes, payload_bytes);
}

void JobImpl::Submit(JobShard& shard, JobShard::Activity activity) {
  LUWU_CHECK(shard.activity == JobShard::Activity::kIdle, "a shard does one thing at a time");
  shard.activity = activity;
  const bool settles = shard.settle != JobShard::Settle::kNone;
  shard.step = settles ? settling_.step : gate_.step();
  shard.groups = settles ? settling_.groups : gate_.groups();
  shard.loss_scale = settles ? settling_.loss_scale : gate_.loss_scale();
  shard.decision = settles ? &settling_.decision : nullptr;
  const HeldSums& own = SumsInHeld(spec()) ? held_ : running_;
  shard.sum = shard.sum_block    ? overflow_.floats(*shard.sum_block)
              : shard.sum_in_own ? own.floats(shard.index)
                                 : nullptr;
  ++in_flight_;
  env_.pool->Submit(&shard);
}

void JobImpl::RunTask(JobShard& shard) {
  const JobTaskResult result = Compute(shard);
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    EndTask(shard, result, &effects);
    --in_flight_;
    changed_.NotifyAll();
  }
  // The job may be gone from here on.
  effects.Run();
}

JobTaskResult JobImpl::Compute(JobShard& shard) const {
  const auto begin = std::chrono::steady_clock::now();
  JobTaskResult result;
  const UpdateRequest request = {.index = shard.index,
                                 .step = shard.step,
                                 .applied = shard.applied,
                                 .groups = shard.groups,
                                 .loss_scale = shard.loss_scale,
                                 .decision = shard.decision,
                                 .sum = shard.sum,
                                 .sum_note = shard.sum_note,
                                 .sources = shard.sources,
                                 .held = held_.data(shard.index),
                                 .squares = shard.squares};
  switch (shard.activity) {
    case JobShard::Activity::kIdle:
      LUWU_CHECK(false, "an idle shard is not submitted");
      break;
    case JobShard::Activity::kFold:
      result.note = updater_.Fold({shard.index, shard.sources, shard.sum, shard.sum_is_new});
      break;
    case JobShard::Activity::kCopy:
      std::memcpy(shard.copy_target, shard.sources[0].data,
                  plan_->map.shards()[shard.index].elements * DTypeBytes(spec().gradient_dtype));
      break;
    case JobShard::Activity::kHold:
      result.update = updater_.Hold(request);
      break;
    case JobShard::Activity::kUpdate:
      result.update = updater_.Update(request);
      break;
    case JobShard::Activity::kCarry:
      result.update.served_crc32c = updater_.Carry(shard.index, shard.step);
      break;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

void JobImpl::EndTask(JobShard& shard, const JobTaskResult& result, JobEffects* effects) {
  using Activity = JobShard::Activity;
  const Activity activity = shard.activity;
  shard.activity = Activity::kIdle;
  if (!result.update.status.ok()) {
    ReleaseTaken(shard, effects);
    return;  // the job ends
  }
  if (activity == Activity::kUpdate) {
    ++counters_.updates;
    counters_.updated_elements += plan_->map.shards()[shard.index].elements;
  }
  if (activity == Activity::kUpdate || activity == Activity::kHold) {
    counters_.update_seconds += result.seconds;
  }
  if (activity == Activity::kFold && !shard.sum_note) shard.sum_note = result.note;
  if (activity == Activity::kCopy) {
    const Contribution copied = shard.taken.front();
    shard.taken.clear();
    shard.progress.MoveToBlock(copied.micro_step, copied.rank, copied.block);
    ReleaseSlot(copied.rank, copied.slot, effects);
  } else {
    ReleaseTaken(shard, effects);
  }
  if (activity == Activity::kFold || activity == Activity::kCopy) {
    Advance(shard, effects);
  } else if (shard.settle != JobShard::Settle::kNone) {
    EndSettle(shard, result.update, effects);
  } else {
    EndReady(shard, result.update, effects);
  }
  MakeRoomForAll();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) EndIfStuck(rank, effects);
}

void JobImpl::EndReady(JobShard& shard, const UpdateResult& result, JobEffects* effects) {
  shard.next_crc32c = result.served_crc32c;
  if (!result.non_finite.empty()) {
    const bool first = gate_.non_finite().empty();
    gate_.NoteNonFinite(fmt::format("node '{}': {}", self().name, result.non_finite));
    // Shards that wait for a reader need not wait any more.
    for (JobShard& other : shards_) {
      if (first && (other.awaits_reader || other.awaits_state)) Advance(other, effects);
    }
  } else if (!shard.absent) {
    shard.ahead = !KeepsUndoState(spec()) && !HoldsSums(spec()) && store_->resident(shard.index);
    for (const UnitSum& squares : shard.squares) gate_.AddSquares(squares.unit, squares.sum);
  }
  MarkReady(shard, effects);
}

void JobImpl::MarkReady(JobShard& shard, JobEffects* effects) {
  if (shard.sum_block) overflow_.Give(*shard.sum_block);
  shard.sum_block.reset();
  shard.sum_in_own = false;
  shard.sum_note.reset();
  shard.ready = true;
  gate_.ShardReady();
  ReportIfDone(effects);
}

void JobImpl::ReleaseTaken(JobShard& shard, JobEffects* effects) {
  for (const Contribution& taken : shard.taken) {
    if (taken.block != kNowhere) overflow_.Give(taken.block);
    if (taken.slot != kNowhere) ReleaseSlot(taken.rank, taken.slot, effects);
  }
  shard.taken.clear();
}

void JobImpl::ReleaseSlot(uint32_t rank_number, uint32_t slot, JobEffects* effects) {
  Rank& rank = ranks_[rank_number];
  rank.session->board().SetReleased(slot, rank.slots.Release(slot));
  effects->FlushBoard(rank.session);
}

}  // namespace luwu
