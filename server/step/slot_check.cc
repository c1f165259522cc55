#include "server/step/slot_check.h"

#include <optional>

namespace luwu {

Status CheckSlotOrigin(const JobPlan& plan, const Session& session, const SlotTrailer& trailer) {
  if (trailer.epoch != plan.options.epoch) {
    return Error(ErrorCode::kStaleEpoch, "a slot of job epoch {:#x}; job '{}' has epoch {:#x}",
                 trailer.epoch, plan.options.spec.name, plan.options.epoch);
  }
  if (trailer.rank != session.identity().rank) {
    return Error(ErrorCode::kPermission, "a slot of rank {} in the session of rank {}",
                 trailer.rank, session.identity().rank);
  }
  return OkStatus();
}

Status CheckSlotTarget(const JobPlan& plan, const SlotTrailer& trailer) {
  const JobSpec& spec = plan.options.spec;
  if (trailer.layer >= spec.layers.size()) {
    return Error(ErrorCode::kInvalidArgument, "a gradient of layer {}; the job has {} layers",
                 trailer.layer, spec.layers.size());
  }
  const LayerSpec& layer = spec.layers[trailer.layer];
  const std::optional<uint32_t> index = plan.map.IndexOf(trailer.layer, trailer.shard);
  if (trailer.shard != kAllShards && !index) {
    return Error(ErrorCode::kInvalidArgument,
                 "a gradient of shard {} of layer {} '{}', which node '{}' does not own",
                 trailer.shard, trailer.layer, layer.name,
                 plan.options.nodes[plan.options.self].name);
  }
  if (!layer.trainable()) {
    return Error(ErrorCode::kInvalidArgument, "a gradient of layer {} '{}', which is frozen",
                 trailer.layer, layer.name);
  }
  if ((trailer.flags & kSlotNoPayload) != 0) return OkStatus();
  if (trailer.dtype != static_cast<uint8_t>(spec.gradient_dtype)) {
    return Error(ErrorCode::kInvalidArgument,
                 "a gradient of layer {} '{}' with element type {}; the job's gradients are {}",
                 trailer.layer, layer.name, trailer.dtype, DTypeName(spec.gradient_dtype));
  }
  const uint64_t expected = plan.map.shards()[*index].elements * DTypeBytes(spec.gradient_dtype);
  if (trailer.payload_bytes != expected) {
    return Error(ErrorCode::kInvalidArgument,
                 "a gradient of layer {} '{}' shard {} with {} bytes; the shard has {}",
                 trailer.layer, layer.name, trailer.shard, trailer.payload_bytes, expected);
  }
  if (trailer.micro_step >= kMicroStepMax) {
    return Error(ErrorCode::kInvalidArgument, "micro-step {}; a step has at most {}",
                 trailer.micro_step, kMicroStepMax);
  }
  return OkStatus();
}

}  // namespace luwu
