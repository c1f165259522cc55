#include "client/src/step_progress.h"

#include <algorithm>

namespace luwu::client {

StepProgress::StepProgress(const ModelPlan& plan, uint64_t current_step)
    : plan_(plan),
      current_step_(current_step),
      layers_(plan.layers().size()),
      shards_(plan.shard_count()) {
  // A former incarnation of this worker may have closed layers in the current step already.
  for (Layer& layer : layers_) layer.guarded_from = current_step;
}

void StepProgress::OpenStep(uint64_t step) {
  if (open_step_ == step) return;
  open_step_ = step;
  for (Layer& layer : layers_) layer = {.guarded_from = layer.guarded_from};
  std::fill(shards_.begin(), shards_.end(), Shard());
}

void StepProgress::EndStep(uint64_t step) {
  LearnStep(step + 1);
  if (open_step_ == step) open_step_.reset();
}

Status StepProgress::CheckPush(uint32_t layer) const {
  if (!plan_.layers()[layer].trainable) {
    return Error(ErrorCode::kInvalidArgument, "layer '{}' is frozen: it takes no gradient",
                 name(layer));
  }
  if (!open_step_) {
    return Error(ErrorCode::kState, "no step is open: call luwu_begin_step(step {}) first",
                 current_step_);
  }
  if (layers_[layer].closed || layers_[layer].close_queued) {
    return Error(ErrorCode::kLayerClosed,
                 "layer '{}' is closed in step {}: its last gradient has been pushed", name(layer),
                 *open_step_);
  }
  return OkStatus();
}

Status StepProgress::Queue(uint32_t layer, bool close) {
  RETURN_IF_ERROR(CheckPush(layer));
  Layer& state = layers_[layer];
  if (state.busy && state.close) {
    return Error(ErrorCode::kLayerClosed, "layer '{}' is being closed in step {}", name(layer),
                 *open_step_);
  }
  ++state.queued;
  state.close_queued = close;
  return OkStatus();
}

void StepProgress::Unqueue(uint32_t layer, bool close) {
  --layers_[layer].queued;
  if (close) layers_[layer].close_queued = false;
}

Status StepProgress::Start(uint32_t layer, PushKind kind, bool close) {
  Layer& state = layers_[layer];
  if (state.kind != PushKind::kNone && (state.kind != kind || state.close != close)) {
    return Error(ErrorCode::kState,
                 "layer '{}' has a {} that did not finish; repeat that call, with the same flags "
                 "and values, before another one",
                 name(layer),
                 state.kind == PushKind::kCopy      ? "push"
                 : state.kind == PushKind::kInPlace ? "push in place"
                                                    : "close");
  }
  state.kind = kind;
  state.close = close;
  state.busy = kind != PushKind::kInPlace;
  // From the first slot on, the other workers may bring the layer's next version about.
  if (close) state.guarded_from = std::max(state.guarded_from, *open_step_);
  return OkStatus();
}

void StepProgress::Finish(uint32_t layer, bool sent, bool delivered) {
  Layer& state = layers_[layer];
  state.busy = false;
  state.sent = state.sent || sent;
  if (delivered) {
    state.closed = state.close;
    ++state.micro_step;
  }
  if (delivered || (!state.sent && state.reserved == 0)) {
    state.kind = PushKind::kNone;
    state.sent = false;
  }
}

bool StepProgress::IsDelivered(uint32_t layer, uint32_t index) const {
  return shard(layer, index).delivered > layers_[layer].micro_step;
}

void StepProgress::MarkDelivered(uint32_t layer, uint32_t index) {
  shard(layer, index).delivered = layers_[layer].micro_step + 1;
  layers_[layer].sent = true;
}

void StepProgress::MarkNodeDelivered(uint32_t layer, uint32_t node) {
  for (const ShardPlan& plan : plan_.layers()[layer].shards) {
    if (plan.node == node) MarkDelivered(layer, plan.shard);
  }
}

bool StepProgress::AllDelivered(uint32_t layer) const {
  for (const ShardPlan& plan : plan_.layers()[layer].shards) {
    if (!IsDelivered(layer, plan.shard)) return false;
  }
  return true;
}

bool StepProgress::IsReserved(uint32_t layer, uint32_t index) const {
  return shard(layer, index).reserved;
}

void StepProgress::SetReserved(uint32_t layer, uint32_t index, bool reserved) {
  if (shard(layer, index).reserved == reserved) return;
  shard(layer, index).reserved = reserved;
  layers_[layer].reserved += reserved ? 1 : -1;
}

std::optional<uint32_t> StepProgress::FirstOpenLayer() const {
  for (const LayerPlan& plan : plan_.layers()) {
    if (plan.trainable && !layers_[plan.layer].closed) return plan.layer;
  }
  return std::nullopt;
}

bool StepProgress::IsProtected(uint32_t layer, uint64_t version) const {
  return !plan_.layers()[layer].trainable || version >= layers_[layer].guarded_from;
}

}  // namespace luwu::client
