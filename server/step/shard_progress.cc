#include "server/step/shard_progress.h"

#include <algorithm>

#include "common/base/check.h"

namespace luwu {

ShardProgress::ShardProgress(uint32_t world_size) : ranks_(world_size) {
  parked_.reserve(world_size);
}

void ShardProgress::Reset() {
  LUWU_CHECK(parked_.empty(), "a step ends with nothing parked");
  std::fill(ranks_.begin(), ranks_.end(), RankProgress());
  done_ranks_ = 0;
  next_ = {};
}

bool ShardProgress::RankDone(uint32_t rank) const {
  const RankProgress& progress = ranks_[rank];
  return progress.total != kOpen && progress.taken + progress.parked == progress.total;
}

void ShardProgress::CountDone(bool was_done, uint32_t rank) {
  const bool done = RankDone(rank);
  if (done && !was_done) ++done_ranks_;
  if (was_done && !done) --done_ranks_;
}

ShardProgress::Verdict ShardProgress::AddPayload(const Contribution& contribution) {
  RankProgress& progress = ranks_[contribution.rank];
  if (contribution.micro_step >= progress.total) return Verdict::kBeyondClose;
  if (contribution.micro_step < progress.taken) return Verdict::kDuplicate;
  const auto place = std::lower_bound(
      parked_.begin(), parked_.end(), PositionOf(contribution),
      [](const Contribution& parked, Position position) { return PositionOf(parked) < position; });
  if (place != parked_.end() && PositionOf(*place) == PositionOf(contribution)) {
    return Verdict::kDuplicate;
  }
  const bool was_done = RankDone(contribution.rank);
  parked_.insert(place, contribution);
  ++progress.parked;
  CountDone(was_done, contribution.rank);
  return Verdict::kAccepted;
}

ShardProgress::Verdict ShardProgress::Close(uint32_t rank, uint32_t total) {
  RankProgress& progress = ranks_[rank];
  if (progress.total == total) return Verdict::kDuplicate;
  if (progress.total != kOpen || progress.taken > total) return Verdict::kBeyondClose;
  for (const Contribution& parked : parked_) {
    if (parked.rank == rank && parked.micro_step >= total) return Verdict::kBeyondClose;
  }
  progress.total = total;
  CountDone(false, rank);
  return Verdict::kAccepted;
}

ShardProgress::Position ShardProgress::After(Position position) const {
  if (position.rank + 1 < ranks_.size()) return {position.micro_step, position.rank + 1};
  return {position.micro_step + 1, 0};
}

bool ShardProgress::OnlyClosedBetween(Position from, Position to) const {
  // A whole round without any payload cannot lie in between: the rank of `to` is still in it.
  if (to.micro_step > from.micro_step + 1) return false;
  for (Position at = from; at < to; at = After(at)) {
    if (ranks_[at.rank].total > at.micro_step) return false;
  }
  return true;
}

size_t ShardProgress::InOrderCount() const {
  size_t count = 0;
  Position at = next_;
  for (const Contribution& parked : parked_) {
    if (!OnlyClosedBetween(at, PositionOf(parked))) break;
    at = After(PositionOf(parked));
    ++count;
  }
  return count;
}

void ShardProgress::TakeInOrder(std::vector<Contribution>* taken) {
  const size_t count = InOrderCount();
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i) {
    RankProgress& progress = ranks_[parked_[i].rank];
    LUWU_CHECK(progress.taken == parked_[i].micro_step, "a rank's payloads are taken in order");
    ++progress.taken;
    --progress.parked;
    taken->push_back(parked_[i]);
  }
  next_ = After(PositionOf(parked_[count - 1]));
  parked_.erase(parked_.begin(), parked_.begin() + static_cast<ptrdiff_t>(count));
}

void ShardProgress::TakeAll(std::vector<Contribution>* taken) {
  LUWU_CHECK(complete(), "a shard is summed when all ranks have closed it");
  TakeInOrder(taken);
  LUWU_CHECK(parked_.empty(), "a complete shard is in order");
  next_ = {kOpen, 0};  // from now on every close stays
}

void ShardProgress::MoveToBlock(uint32_t micro_step, uint32_t rank, uint32_t block) {
  for (Contribution& parked : parked_) {
    if (parked.micro_step != micro_step || parked.rank != rank) continue;
    parked.slot = kNowhere;
    parked.block = block;
    return;
  }
  LUWU_CHECK(false, "a contribution stays parked while it is moved");
}

void ShardProgress::DropRank(uint32_t rank, std::vector<Contribution>* dropped) {
  const bool was_done = RankDone(rank);
  std::erase_if(parked_, [&](const Contribution& parked) {
    if (parked.rank != rank) return false;
    dropped->push_back(parked);
    return true;
  });
  RankProgress& progress = ranks_[rank];
  progress.parked = 0;
  const bool relied_on = progress.total != kOpen && Position{progress.total, rank} < next_;
  if (!relied_on) progress.total = kOpen;
  CountDone(was_done, rank);
}

}  // namespace luwu
