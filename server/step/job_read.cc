// Reading masters and moments of one layer, between two commits.
//
// With undo state the committed generation is not written before the step is decided, so a read can
// begin at any time; it pins that generation, and an update that wants to write it waits for the
// reader. Without undo state a read waits until no shard of the layer is half way through a step,
// and then holds the layer's updates back. In all modes it waits for shards that a decision has
// left to be settled. Masters in the split format pin the served copy as well.
#include <algorithm>
#include <array>

#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr uint64_t kPieceElements = 64 * 1024;

const char* QuantityName(Quantity quantity) {
  switch (quantity) {
    case Quantity::kMaster:
      return "master";
    case Quantity::kMoment1:
      return "first moment";
    case Quantity::kMoment2:
      return "second moment";
    case Quantity::kMoment3:
      return "third moment";
  }
  return "unknown quantity";
}

}  // namespace

Status JobImpl::Read(const ReadPlace& place, TimePoint deadline,
                     const std::function<Status(const Piece&)>& sink) {
  const auto [layer, quantity, skip_elements] = place;
  if (layer >= spec().layers.size()) {
    return Error(ErrorCode::kInvalidArgument, "layer {} of a job with {} layers", layer,
                 spec().layers.size());
  }
  const LayerSpec& layer_spec = spec().layers[layer];
  const uint32_t array = static_cast<uint32_t>(quantity) - 1;
  const uint32_t arrays = layer_spec.trainable() ? optim::LayoutOf(spec().optimizer).count : 1;
  if (array >= arrays) {
    return Error(ErrorCode::kInvalidArgument, "layer {} '{}' has no {}: {}", layer, layer_spec.name,
                 QuantityName(quantity),
                 layer_spec.trainable() ? "the job's optimizer keeps none" : "it is frozen");
  }
  JobLayerPin pin;
  pin.served = array == 0 && layer_spec.trainable() &&
               spec().optimizer.master_format == MasterFormat::kSplit;
  RETURN_IF_ERROR(PinLayer(layer, deadline, &pin));
  const ShardMap::IndexRange range = plan_->map.LayerRange(layer);
  Status status;
  uint64_t skip = skip_elements;
  Mapping scratch;  // of a shard that is on disk
  for (uint32_t i = range.begin; i < range.end && status.ok(); ++i) {
    const uint64_t from = std::min(skip, plan_->map.shards()[i].elements);
    skip -= from;
    if (from == plan_->map.shards()[i].elements) continue;  // not read from the disk for nothing
    const JobLayerPin::Shard& pinned = pin.shards[i - range.begin];
    const StatusOr<optim::StateArrays> arrays = store_->ReadPinned(i, pinned.state, &scratch);
    status = arrays.status();
    if (!status.ok()) break;
    status = ReadShard({i, array, *arrays, weights_->Payload(i, pinned.served_version)}, from,
                       pin.version, sink);
  }
  UnpinLayer(layer, pin);
  return status;
}

Status JobImpl::ReadShard(const StateView& view, uint64_t from, uint64_t version,
                          const std::function<Status(const Piece&)>& sink) const {
  const LocalShard& local = plan_->map.shards()[view.index];
  std::vector<float> values(std::min(kPieceElements, local.elements - from));
  for (uint64_t first = from; first < local.elements; first += kPieceElements) {
    const uint64_t count = std::min(kPieceElements, local.elements - first);
    const std::span<float> piece = std::span(values).first(count);
    updater_.ReadState(view, first, piece);
    RETURN_IF_ERROR(sink(Piece{local.shard, first, piece, version}));
  }
  return OkStatus();
}

bool JobImpl::HalfWay(ShardMap::IndexRange range) const {
  const bool in_place = !KeepsUndoState(spec()) && !HoldsSums(spec());
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const JobShard& shard = shards_[i];
    if (shard.settle != JobShard::Settle::kNone) return true;
    if (!in_place || state_ == JobState::kFailed) continue;
    if (shard.ready || shard.activity == JobShard::Activity::kUpdate) return true;
  }
  return false;
}

Status JobImpl::PinLayer(uint32_t layer, TimePoint deadline, JobLayerPin* pin) {
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
      return Error(ErrorCode::kDeadline,
                   "layer {} '{}' is being updated in step {}, and the step has not ended by the "
                   "deadline; read between two steps",
                   layer, spec().layers[layer].name, gate_.step());
    }
  }
  pin->version = spec().layers[layer].trainable() ? gate_.step() : 0;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const uint32_t generation = shards_[i].flips % 2;
    ++shards_[i].readers[generation];
    // Only a job that failed is seen with shards that are ahead.
    const uint64_t served_version = pin->version + (shards_[i].ahead ? 1 : 0);
    if (pin->served) ++shards_[i].served_readers[served_version % 2];
    pin->shards.push_back({store_->Pin(i), generation, served_version});
  }
  return OkStatus();
}

void JobImpl::UnpinLayer(uint32_t layer, const JobLayerPin& pin) {
  const ShardMap::IndexRange range = plan_->map.LayerRange(layer);
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const JobLayerPin::Shard& pinned = pin.shards[i - range.begin];
      --shards_[i].readers[pinned.generation];
      if (pin.served) --shards_[i].served_readers[pinned.served_version % 2];
      if (shards_[i].awaits_reader) Advance(shards_[i], &effects);
    }
  }
  effects.Run();
}

}  // namespace luwu
