// Loading masters and publishing version 0.
#include <algorithm>

#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

// Loads come as a few long runs; a loader that writes scattered pieces is asked for longer ones.
constexpr size_t kLoadedRangesMax = 4096;

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Adds [first, end), joining ranges that touch.
void AddRange(Ranges* ranges, uint64_t first, uint64_t end) {
  auto at =
      std::lower_bound(ranges->begin(), ranges->end(), first,
                       [](const auto& range, uint64_t value) { return range.second < value; });
  auto last = at;
  while (last != ranges->end() && last->first <= end) {
    first = std::min(first, last->first);
    end = std::max(end, last->second);
    ++last;
  }
  at = ranges->erase(at, last);
  ranges->insert(at, {first, end});
}

bool Covers(const Ranges& ranges, uint64_t first, uint64_t end) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range.first <= first && end <= range.second;
  });
}

}  // namespace

Status JobImpl::CheckLoadable() const {
  RETURN_IF_ERROR(shutdown_);
  if (gate_.step() > 0 || gate_.begun_by_anyone()) {
    return Error(
        ErrorCode::kState,
        "job '{}' is training at step {}: masters can be loaded until a rank begins step 0; load "
        "them into a new job, or delete this one first",
        spec().name, gate_.step());
  }
  return OkStatus();
}

Status JobImpl::EnterLoad() {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckLoadable());
  ++loads_in_progress_;
  return OkStatus();
}

void JobImpl::LeaveLoad() {
  MutexLock lock(mutex_);
  --loads_in_progress_;
}

JobShard& JobImpl::ShardForLoad(uint32_t index) {
  MutexLock lock(mutex_);
  return shards_[index];
}

Status JobImpl::Load(uint32_t layer, uint64_t shard, uint64_t offset,
                     std::span<const float> values) {
  if (layer >= spec().layers.size()) {
    return Error(ErrorCode::kInvalidArgument, "layer {} of a job with {} layers", layer,
                 spec().layers.size());
  }
  const std::optional<uint32_t> index = plan_->map.IndexOf(layer, shard);
  if (!index) {
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}' does not own shard {} of layer {} '{}'; send it to the node that does",
                 self().name, shard, layer, spec().layers[layer].name);
  }
  const uint64_t elements = plan_->map.shards()[*index].elements;
  if (!RangeFits(offset, values.size(), elements)) {
    return Error(ErrorCode::kInvalidArgument,
                 "elements [{}, +{}) lie outside shard {} of layer {} '{}', which has {} elements",
                 offset, values.size(), shard, layer, spec().layers[layer].name, elements);
  }
  if (values.empty()) return OkStatus();
  MutexLock load_lock(load_mutex_);
  RETURN_IF_ERROR(EnterLoad());
  JobShard& target = ShardForLoad(*index);
  Status status;
  if (target.loaded.size() < kLoadedRangesMax) {
    status = updater_.LoadMasters(*index, offset, values);
    if (status.ok()) AddRange(&target.loaded, offset, offset + values.size());
    target.load_dirty = true;
  } else {
    status = Error(ErrorCode::kResourceExhausted,
                   "shard {} of layer {} was loaded in more than {} scattered pieces; load longer "
                   "runs, in order",
                   shard, layer, kLoadedRangesMax);
  }
  LeaveLoad();
  return status;
}

Status JobImpl::CheckCoverage() {
  for (uint32_t i = 0; i < plan_->map.shard_count(); ++i) {
    const JobShard& shard = ShardForLoad(i);
    const LocalShard& local = plan_->map.shards()[i];
    for (const Segment& segment : updater_.segments(i)) {
      if (segment.tensor == kNoTensor) continue;
      if (Covers(shard.loaded, segment.first, segment.first + segment.count)) continue;
      return Error(ErrorCode::kState,
                   "tensor '{}' of layer {} '{}' was not loaded completely (shard {} on node '{}' "
                   "lacks elements); load it, or finish with allow_missing to start from zeros",
                   spec().layers[local.layer].tensors[segment.tensor].name, local.layer,
                   spec().layers[local.layer].name, local.shard, self().name);
    }
  }
  return OkStatus();
}

Status JobImpl::FinishLoad(bool allow_missing) {
  MutexLock load_lock(load_mutex_);
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(shutdown_);
    // A loader that was restarted may say it again.
    if (state_ != JobState::kLoading && !CheckLoadable().ok()) return OkStatus();
  }
  if (!allow_missing) RETURN_IF_ERROR(CheckCoverage());
  RETURN_IF_ERROR(EnterLoad());
  Status status;
  for (uint32_t i = 0; i < plan_->map.shard_count(); ++i) {
    JobShard& shard = ShardForLoad(i);
    if (!shard.load_dirty) continue;
    status = updater_.PublishInitial(i, shard.state_loaded);
    if (!status.ok()) break;
    shard.load_dirty = shard.state_loaded = false;
  }
  if (status.ok()) status = store_->Flush();
  if (!status.ok()) {
    LeaveLoad();
    return status;
  }
  PublishLoaded();
  return OkStatus();
}

void JobImpl::PublishLoaded() {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    --loads_in_progress_;
    if (state_ == JobState::kLoading) {
      state_ = JobState::kTraining;
      LogInfo("job_loaded", "job={} node={}", spec().name, self().name);
    }
    std::fill(published_.begin(), published_.end(), uint64_t{1});
    PublishBoards(&effects);
  }
  effects.Run();
}

}  // namespace luwu
