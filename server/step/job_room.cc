// Making room in the inbox of a worker that is about to run out of slots: contributions that are
// next in order are folded into a running sum, early ones move to overflow blocks. When there is no
// block left, the worker waits.
#include <algorithm>

#include "common/base/check.h"
#include "server/step/job_impl.h"

namespace luwu {

void JobImpl::StartFold(JobShard& shard) {
  shard.sum_is_new = !shard.has_sum();
  if (shard.sum_is_new) {
    shard.sum_in_own = HasOwnSums();
    if (!shard.sum_in_own) shard.sum_block = overflow_.Take();
  }
  LUWU_CHECK(shard.has_sum(), "a fold has memory for its sum");
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

// Best first: a contribution that is next in order and joins a sum that has its memory (costs
// nothing); one that is next in order and begins a sum; one that came early and moves to a block.
bool JobImpl::MakeRoomOnce(uint32_t rank_number) {
  const SlotTable& slots = ranks_[rank_number].slots;
  JobShard* begins_sum = nullptr;
  JobShard* early_shard = nullptr;
  Contribution early;
  for (uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (!slots.held(slot) || slots.pinned(slot)) continue;
    JobShard& shard = shards_[slots.shard(slot)];
    if (shard.activity != JobShard::Activity::kIdle || shard.progress.complete()) continue;
    if (shard.settle != JobShard::Settle::kNone) continue;  // waits for a reader
    const std::vector<Contribution>& parked = shard.progress.parked();
    size_t place = 0;
    while (parked[place].rank != rank_number || parked[place].slot != slot) ++place;
    const bool in_order = place < shard.progress.InOrderCount();
    if (in_order && (shard.has_sum() || HasOwnSums())) {
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

// True when the rank has no slot left to send with, and everything that could give it one back -
// the shards its slots are parked for, and those that hold the overflow blocks - waits for a
// gradient or a close of the same rank. It would wait for ever.
bool JobImpl::WaitsForItself(uint32_t rank_number) const {
  const SlotTable& slots = ranks_[rank_number].slots;
  if (HasOwnSums() || !overflow_.empty()) return false;
  if (slots.held_count() < slots.size() || slots.pinned_count() > 0) return false;
  const auto awaited = [rank_number](const JobShard& shard) {
    return shard.activity == JobShard::Activity::kIdle && shard.settle == JobShard::Settle::kNone &&
           !shard.progress.RankDone(rank_number);
  };
  for (uint32_t slot = 0; slot < slots.size(); ++slot) {
    const JobShard& shard = shards_[slots.shard(slot)];
    // With a sum it is folded as soon as the ranks before it have pushed.
    if (!awaited(shard) || shard.has_sum()) return false;
  }
  for (const JobShard& shard : shards_) {
    const std::vector<Contribution>& parked = shard.progress.parked();
    const bool has_block =
        shard.sum_block || std::any_of(parked.begin(), parked.end(), [](const Contribution& each) {
          return each.block != kNowhere;
        });
    if ((has_block || shard.activity != JobShard::Activity::kIdle) && !awaited(shard)) return false;
  }
  return true;
}

void JobImpl::EndIfStuck(uint32_t rank_number, JobEffects* effects) {
  const Rank& rank = ranks_[rank_number];
  if (rank.session == nullptr || !IsCurrent(*rank.session) || !WaitsForItself(rank_number)) return;
  EndWithFault(
      *rank.session,
      Error(ErrorCode::kResourceExhausted,
            "job '{}' was created without accumulation, and rank {} has filled all {} "
            "slots and {} overflow blocks of node '{}' with gradients of shards that it "
            "has not closed: create the job with accumulates=1 (Python: micro_batches or "
            "Settings.accumulates; delete the job first), "
            "or raise overflow_bytes",
            spec().name, rank_number, rank.slots.size(), overflow_.block_count(), self().name),
      effects);
}

}  // namespace luwu
