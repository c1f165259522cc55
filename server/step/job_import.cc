// Going on from state that was exported: moments beside masters while the job is loading, then the
// step to go on at.
#include <algorithm>

#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

Status CheckStart(const JobSpec& spec, const StartPoint& start) {
  bool fits = start.applied.size() == spec.layers.size();
  for (size_t i = 0; fits && i < start.applied.size(); ++i) {
    fits = start.applied[i].size() == ShardCount(spec.layers[i].elements, spec.shard_elements);
  }
  if (fits) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "the point to start job '{}' at has other layers and shards than the job",
               spec.name);
}

}  // namespace

Status JobImpl::LoadState(const StatePlace& place, std::span<const float> values) {
  if (place.layer >= spec().layers.size()) {
    return Error(ErrorCode::kInvalidArgument, "layer {} of a job with {} layers", place.layer,
                 spec().layers.size());
  }
  const LayerSpec& layer = spec().layers[place.layer];
  const std::optional<uint32_t> index = plan_->map.IndexOf(place.layer, place.shard);
  const uint32_t array = static_cast<uint32_t>(place.quantity) - 1;
  if (!index || array == 0 || !layer.trainable() ||
      array >= optim::LayoutOf(spec().optimizer).count) {
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}' has no state array {} of shard {} of layer {} '{}'", self().name, array,
                 place.shard, place.layer, layer.name);
  }
  if (!updater_.IsStateRange(*index, place.offset, values.size())) {
    return Error(
        ErrorCode::kInvalidArgument,
        "elements [{}, +{}) of shard {} of layer {} '{}' are no whole blocks of one tensor",
        place.offset, values.size(), place.shard, place.layer, layer.name);
  }
  if (values.empty()) return OkStatus();
  MutexLock load_lock(load_mutex_);
  RETURN_IF_ERROR(EnterLoad());
  const Status status = updater_.LoadState(*index, array, place.offset, values);
  JobShard& shard = ShardForLoad(*index);
  shard.load_dirty = shard.state_loaded = true;
  LeaveLoad();
  return status;
}

Status JobImpl::FinishLoadAt(const StartPoint& start) {
  RETURN_IF_ERROR(CheckStart(spec(), start));
  MutexLock load_lock(load_mutex_);
  RETURN_IF_ERROR(CheckCoverage());
  RETURN_IF_ERROR(EnterLoad());
  Status status;
  for (uint32_t i = 0; i < plan_->map.shard_count() && status.ok(); ++i) {
    const bool trainable = ShardForLoad(i).trainable;
    status = updater_.PublishLoaded(i, trainable ? start.step : 0);
    ShardForLoad(i).load_dirty = false;
  }
  if (status.ok()) status = store_->Flush();
  if (!status.ok()) {
    LeaveLoad();
    return status;
  }
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    --loads_in_progress_;
    gate_.Restore(start.step, start.loss_scale);
    made_.finite_steps = start.finite_run;
    for (uint32_t i = 0; i < plan_->map.shard_count(); ++i) {
      const LocalShard& local = plan_->map.shards()[i];
      shards_[i].applied = start.applied[local.layer][local.shard];
      published_[i] = (shards_[i].trainable ? start.step : 0) + 1;
    }
    state_ = JobState::kTraining;
    LogInfo("job_loaded", "job={} node={} step={}", spec().name, self().name, start.step);
    PublishBoards(&effects);
  }
  effects.Run();
  return OkStatus();
}

StartPoint JobImpl::WhereItStands() const {
  StartPoint now;
  MutexLock lock(mutex_);
  now.step = gate_.step();
  now.loss_scale = gate_.loss_scale();
  now.finite_run = made_.finite_steps;
  for (const LayerSpec& layer : spec().layers) {
    now.applied.emplace_back(ShardCount(layer.elements, spec().shard_elements));
  }
  for (uint32_t i = 0; i < plan_->map.shard_count(); ++i) {
    const LocalShard& local = plan_->map.shards()[i];
    now.applied[local.layer][local.shard] = shards_[i].applied;
  }
  return now;
}

}  // namespace luwu
