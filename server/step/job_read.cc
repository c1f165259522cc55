// Reading masters and moments of one layer, between two commits.
//
// With undo state the committed generation is never written, so a read can begin at any time; it
// pins that generation, and an update that wants to write it waits for the reader. Without undo
// state a read waits until no shard of the layer is half way through a step, and then holds the
// layer's updates back.
#include <algorithm>
#include <array>

#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr uint64_t kPieceElements = 256 * 1024;  // 1 MiB

const char* QuantityName(Quantity quantity) {
  switch (quantity) {
    case Quantity::kMaster:
      return "master";
    case Quantity::kMoment1:
      return "first moment";
    case Quantity::kMoment2:
      return "second moment";
  }
  return "unknown quantity";
}

}  // namespace

Status JobImpl::Read(uint32_t layer, Quantity quantity, TimePoint deadline,
                     const std::function<Status(const Piece&)>& sink) {
  if (layer >= spec().layers.size()) {
    return Error(ErrorCode::kInvalidArgument, "layer {} of a job with {} layers", layer,
                 spec().layers.size());
  }
  const LayerSpec& layer_spec = spec().layers[layer];
  const uint32_t array = static_cast<uint32_t>(quantity) - 1;
  const uint32_t arrays = layer_spec.trainable() ? optim::StateArrayCount(spec().optimizer) : 1;
  if (array >= arrays) {
    return Error(ErrorCode::kNotFound, "layer {} '{}' has no {}: {}", layer, layer_spec.name,
                 QuantityName(quantity),
                 layer_spec.trainable() ? "the job's optimizer keeps none" : "it is frozen");
  }
  LayerPin pin;
  RETURN_IF_ERROR(PinLayer(layer, array, deadline, &pin));
  const ShardMap::IndexRange range = plan_->map.LayerRange(layer);
  Status status;
  for (uint32_t i = range.begin; i < range.end && status.ok(); ++i) {
    const LocalShard& local = plan_->map.shards()[i];
    const float* values = pin.shards[i - range.begin].values;
    for (uint64_t first = 0; first < local.elements && status.ok(); first += kPieceElements) {
      const uint64_t count = std::min(kPieceElements, local.elements - first);
      status = sink(Piece{local.shard, first, {values + first, count}, pin.version});
    }
  }
  UnpinLayer(layer, pin);
  return status;
}

bool JobImpl::HalfWay(ShardMap::IndexRange range) const {
  if (spec().keep_undo_state) return false;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const JobShard& shard = shards_[i];
    if (shard.activity == JobShard::Activity::kUpdate) return true;
    if (shard.updated && state_ != JobState::kFailed) return true;
  }
  return false;
}

Status JobImpl::PinLayer(uint32_t layer, uint32_t array, TimePoint deadline, LayerPin* pin) {
  const ShardMap::IndexRange range = plan_->map.LayerRange(layer);
  MutexLock lock(mutex_);
  for (;;) {
    RETURN_IF_ERROR(shutdown_);
    if (state_ == JobState::kLoading) {
      return Error(ErrorCode::kState, "job '{}' has no weights yet: load them and finish loading",
                   spec().name);
    }
    if (!HalfWay(range)) break;
    if (!changed_.WaitUntil(mutex_, deadline) && HalfWay(range)) {
      return Error(ErrorCode::kState,
                   "layer {} '{}' is being updated in step {}, and the step has not ended by the "
                   "deadline; read between two steps",
                   layer, spec().layers[layer].name, gate_.step());
    }
  }
  pin->version = spec().layers[layer].trainable() ? gate_.step() : 0;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const uint32_t generation = shards_[i].flips % 2;
    ++shards_[i].readers[generation];
    pin->shards.push_back({store_->Acquire(i).current[array], generation});
  }
  return OkStatus();
}

void JobImpl::UnpinLayer(uint32_t layer, const LayerPin& pin) {
  const ShardMap::IndexRange range = plan_->map.LayerRange(layer);
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    for (uint32_t i = range.begin; i < range.end; ++i) {
      store_->Release(i);
      --shards_[i].readers[pin.shards[i - range.begin].generation];
      if (shards_[i].deferred) Advance(shards_[i], &effects);
    }
  }
  effects.Run();
}

}  // namespace luwu
