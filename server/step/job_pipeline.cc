// The pipeline of a shard: receive (job_slots.cc) -> load state -> update -> store state -> publish
// (job_steps.cc), with folds and copies on the side when a worker runs out of slots. Decides under
// the job's lock what a shard's task does next; the task itself runs on an update thread without
// it.
#include <chrono>
#include <cstring>

#include "common/base/check.h"
#include "server/step/job_impl.h"

namespace luwu {

void JobShard::Run() { job->RunTask(*this); }

void JobImpl::Advance(JobShard& shard, JobEffects* effects) {
  if (shard.activity != JobShard::Activity::kIdle || shard.updated) return;
  if (!shard.progress.complete() || !shutdown_.ok()) return;
  if (!gate_.non_finite().empty()) {
    // The step cannot be applied any more: no use in computing the rest of it.
    shard.deferred = false;
    shard.progress.TakeAll(&shard.taken);
    ReleaseTaken(shard, effects);
    MarkUpdated(shard, effects);
    return;
  }
  const uint64_t target = spec().keep_undo_state ? shard.flips + 1 : shard.flips;
  shard.deferred = shard.readers[target % 2] > 0;
  if (!shard.deferred) StartUpdate(shard);
}

void JobImpl::StartUpdate(JobShard& shard) {
  gate_.NoteUpdateBegun();
  shard.progress.TakeAll(&shard.taken);
  if (shard.taken.empty() && !shard.sum_block) {
    shard.absent = true;
    StartCarry(shard);
    return;
  }
  PinSources(shard);
  Submit(shard, JobShard::Activity::kUpdate);
}

void JobImpl::StartFold(JobShard& shard) {
  shard.sum_is_new = !shard.sum_block.has_value();
  if (shard.sum_is_new) shard.sum_block = overflow_.Take();
  LUWU_CHECK(shard.sum_block.has_value(), "a fold has a block for its sum");
  shard.progress.TakeInOrder(&shard.taken);
  PinSources(shard);
  Submit(shard, JobShard::Activity::kFold);
}

void JobImpl::StartCopy(JobShard& shard, const Contribution& contribution, uint32_t block) {
  shard.taken.push_back(contribution);
  shard.copy_target = overflow_.data(block);
  PinSources(shard);
  shard.taken.back().block = block;
  Submit(shard, JobShard::Activity::kCopy);
}

void JobImpl::StartCarry(JobShard& shard) { Submit(shard, JobShard::Activity::kCarry); }

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
  shard.step = gate_.step();
  shard.sum = shard.sum_block ? overflow_.floats(*shard.sum_block) : nullptr;
  shard.groups = gate_.groups();
  ++in_flight_;
  env_.pool->Submit(&shard);
}

void JobImpl::RunTask(JobShard& shard) {
  const TaskResult result = Compute(shard);
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

JobImpl::TaskResult JobImpl::Compute(JobShard& shard) const {
  const auto begin = std::chrono::steady_clock::now();
  TaskResult result;
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
    case JobShard::Activity::kUpdate:
      result.update = updater_.Update({shard.index, shard.step, shard.applied, shard.groups,
                                       shard.sum, shard.sum_note, shard.sources});
      break;
    case JobShard::Activity::kCarry:
      result.update.served_crc32c = updater_.Carry(shard.index, shard.step);
      break;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

void JobImpl::EndTask(JobShard& shard, const TaskResult& result, JobEffects* effects) {
  const JobShard::Activity activity = shard.activity;
  shard.activity = JobShard::Activity::kIdle;
  if (activity == JobShard::Activity::kUpdate) {
    ++counters_.updates;
    counters_.updated_elements += plan_->map.shards()[shard.index].elements;
    counters_.update_seconds += result.seconds;
  }
  if (activity == JobShard::Activity::kFold && !shard.sum_note) shard.sum_note = result.note;
  if (activity == JobShard::Activity::kCopy) {
    const Contribution copied = shard.taken.front();
    shard.taken.clear();
    shard.progress.MoveToBlock(copied.micro_step, copied.rank, copied.block);
    ReleaseSlot(copied.rank, copied.slot, effects);
  } else {
    ReleaseTaken(shard, effects);
  }
  const bool carried_after_skip = gate_.phase() == StepGate::Phase::kFinishing;
  if (carried_after_skip) {
    shard.next_crc32c = result.update.served_crc32c;
    if (--carries_left_ == 0) PublishStep(effects);
  } else if (activity == JobShard::Activity::kUpdate || activity == JobShard::Activity::kCarry) {
    EndUpdate(shard, result.update, effects);
  } else {
    Advance(shard, effects);
  }
  MakeRoomForAll();
}

void JobImpl::EndUpdate(JobShard& shard, const UpdateResult& result, JobEffects* effects) {
  shard.next_crc32c = result.served_crc32c;
  if (!result.non_finite.empty()) {
    const bool first = gate_.non_finite().empty();
    gate_.NoteNonFinite(fmt::format("node '{}': {}", self().name, result.non_finite));
    // Shards that wait for a reader need not wait any more.
    for (JobShard& other : shards_) {
      if (first && other.deferred) Advance(other, effects);
    }
  }
  MarkUpdated(shard, effects);
}

void JobImpl::MarkUpdated(JobShard& shard, JobEffects* effects) {
  if (shard.sum_block) overflow_.Give(*shard.sum_block);
  shard.sum_block.reset();
  shard.sum_note.reset();
  shard.updated = true;
  gate_.ShardUpdated();
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

void JobImpl::MakeRoomForAll() {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) MakeRoom(rank);
}

// A worker that has (nearly) no slot left while its contributions wait for their turn would wait
// for workers that may wait for it. Slots being read are as good as free.
void JobImpl::MakeRoom(uint32_t rank_number) {
  if (!shutdown_.ok()) return;
  const SlotTable& slots = ranks_[rank_number].slots;
  const uint32_t low = slots.size() / 8;
  while (slots.size() - slots.held_count() + slots.pinned_count() <= low) {
    if (!MakeRoomOnce(rank_number)) return;
  }
}

// Best first: a contribution that is next in order and joins a sum that exists (costs nothing); one
// that is next in order and begins a sum; one that came early and moves to a block.
bool JobImpl::MakeRoomOnce(uint32_t rank_number) {
  const SlotTable& slots = ranks_[rank_number].slots;
  JobShard* begins_sum = nullptr;
  JobShard* early_shard = nullptr;
  Contribution early;
  for (uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (!slots.held(slot) || slots.pinned(slot)) continue;
    JobShard& shard = shards_[slots.shard(slot)];
    if (shard.activity != JobShard::Activity::kIdle || shard.progress.complete()) continue;
    const std::vector<Contribution>& parked = shard.progress.parked();
    size_t place = 0;
    while (parked[place].rank != rank_number || parked[place].slot != slot) ++place;
    const bool in_order = place < shard.progress.InOrderCount();
    if (in_order && shard.sum_block) {
      StartFold(shard);
      return true;
    }
    if (in_order && begins_sum == nullptr) begins_sum = &shard;
    if (!in_order && early_shard == nullptr) {
      early_shard = &shard;
      early = parked[place];
    }
  }
  if (overflow_.empty()) return false;
  if (begins_sum != nullptr) {
    StartFold(*begins_sum);
    return true;
  }
  if (early_shard == nullptr) return false;
  StartCopy(*early_shard, early, *overflow_.Take());
  return true;
}

}  // namespace luwu
