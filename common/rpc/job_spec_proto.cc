#include "common/rpc/job_spec_proto.h"

namespace luwu::rpc {
namespace {

// The numbers of the C++ enums and of the proto enums are equal by contract.
static_assert(int(DType::kFloat64) == v1::DTYPE_FLOAT64);
static_assert(int(DType::kFloat16) == v1::DTYPE_FLOAT16);
static_assert(int(DType::kBFloat16) == v1::DTYPE_BFLOAT16);
static_assert(int(DType::kFloat32) == v1::DTYPE_FLOAT32);
static_assert(int(OptimizerKind::kAdamW) == v1::OPTIMIZER_KIND_ADAMW);
static_assert(int(OptimizerKind::kSgd) == v1::OPTIMIZER_KIND_SGD);
static_assert(int(OptimizerKind::kAdagrad) == v1::OPTIMIZER_KIND_ADAGRAD);
static_assert(int(StatePrecision::kBlockwise8) == v1::STATE_PRECISION_BLOCKWISE8);
static_assert(int(MasterFormat::kSplit) == v1::MASTER_FORMAT_SPLIT);
static_assert(int(UpdateMode::kSpeculative) == v1::UPDATE_MODE_SPECULATIVE);
static_assert(int(ClipScope::kLayer) == v1::CLIP_SCOPE_LAYER);
static_assert(int(Durability::kSynced) == v1::DURABILITY_SYNCED);
static_assert(int(Reduction::kSum) == v1::REDUCTION_SUM);
static_assert(int(Reduction::kMean) == v1::REDUCTION_MEAN);
static_assert(int(NonFinitePolicy::kSkip) == v1::NON_FINITE_POLICY_SKIP);
static_assert(int(NonFinitePolicy::kFail) == v1::NON_FINITE_POLICY_FAIL);

Status UnknownValue(const char* field, int value) {
  return Error(ErrorCode::kInvalidArgument,
               "{} has the value {}, which this version does not know; use daemons and clients of "
               "one version",
               field, value);
}

Status CheckDType(const char* field, v1::DType value) {
  if (v1::DType_IsValid(value)) return OkStatus();
  return Error(ErrorCode::kUnsupported,
               "{} has the value {}, which this version does not know; float32, bfloat16 and "
               "float16 are supported",
               field, static_cast<int>(value));
}

Status CheckEnums(const v1::JobSpec& proto) {
  RETURN_IF_ERROR(CheckDType("served_dtype", proto.served_dtype()));
  RETURN_IF_ERROR(CheckDType("gradient_dtype", proto.gradient_dtype()));
  RETURN_IF_ERROR(CheckDType("held_dtype", proto.held_dtype()));
  const v1::OptimizerSpec& optimizer = proto.optimizer();
  if (!v1::OptimizerKind_IsValid(optimizer.kind())) {
    return UnknownValue("optimizer.kind", optimizer.kind());
  }
  if (!v1::StatePrecision_IsValid(optimizer.state_precision())) {
    return UnknownValue("optimizer.state_precision", optimizer.state_precision());
  }
  if (!v1::MasterFormat_IsValid(optimizer.master_format())) {
    return UnknownValue("optimizer.master_format", optimizer.master_format());
  }
  if (!v1::UpdateMode_IsValid(proto.update_mode())) {
    return UnknownValue("update_mode", proto.update_mode());
  }
  if (!v1::ClipScope_IsValid(proto.clip_scope())) {
    return UnknownValue("clip_scope", proto.clip_scope());
  }
  if (!v1::Durability_IsValid(proto.durability())) {
    return UnknownValue("durability", proto.durability());
  }
  if (!v1::Reduction_IsValid(proto.reduction())) {
    return UnknownValue("reduction", proto.reduction());
  }
  if (!v1::NonFinitePolicy_IsValid(proto.on_non_finite())) {
    return UnknownValue("on_non_finite", proto.on_non_finite());
  }
  return OkStatus();
}

OptimizerSpec OptimizerFromProto(const v1::OptimizerSpec& proto) {
  OptimizerSpec optimizer;
  optimizer.kind = static_cast<OptimizerKind>(proto.kind());
  optimizer.sgd_momentum = proto.sgd_momentum();
  optimizer.amsgrad = proto.amsgrad();
  optimizer.state_precision = static_cast<StatePrecision>(proto.state_precision());
  optimizer.master_format = static_cast<MasterFormat>(proto.master_format());
  optimizer.rounding_seed = proto.rounding_seed();
  optimizer.initial_accumulator = proto.initial_accumulator();
  return optimizer;
}

void OptimizerToProto(const OptimizerSpec& optimizer, v1::OptimizerSpec* proto) {
  proto->set_kind(static_cast<v1::OptimizerKind>(optimizer.kind));
  proto->set_sgd_momentum(optimizer.sgd_momentum);
  proto->set_amsgrad(optimizer.amsgrad);
  proto->set_state_precision(static_cast<v1::StatePrecision>(optimizer.state_precision));
  proto->set_master_format(static_cast<v1::MasterFormat>(optimizer.master_format));
  proto->set_rounding_seed(optimizer.rounding_seed);
  proto->set_initial_accumulator(optimizer.initial_accumulator);
}

LossScaling LossScalingFromProto(const v1::LossScaling& proto) {
  return {proto.initial_scale(), proto.growth_factor(), proto.backoff_factor(),
          proto.growth_interval()};
}

void LossScalingToProto(const LossScaling& scaling, v1::LossScaling* proto) {
  proto->set_initial_scale(scaling.initial_scale);
  proto->set_growth_factor(scaling.growth_factor);
  proto->set_backoff_factor(scaling.backoff_factor);
  proto->set_growth_interval(scaling.growth_interval);
}

TensorSpec TensorFromProto(const v1::TensorSpec& proto) {
  TensorSpec tensor;
  tensor.name = proto.name();
  tensor.shape.assign(proto.shape().begin(), proto.shape().end());
  tensor.offset = proto.offset();
  tensor.group = proto.group();
  tensor.trainable = proto.trainable();
  return tensor;
}

LayerSpec LayerFromProto(const v1::LayerSpec& proto) {
  LayerSpec layer;
  layer.name = proto.name();
  layer.elements = proto.elements();
  layer.tensors.reserve(static_cast<size_t>(proto.tensors_size()));
  for (const v1::TensorSpec& tensor : proto.tensors()) {
    layer.tensors.push_back(TensorFromProto(tensor));
  }
  return layer;
}

void LayerToProto(const LayerSpec& layer, v1::LayerSpec* proto) {
  proto->set_name(layer.name);
  proto->set_elements(layer.elements);
  for (const TensorSpec& tensor : layer.tensors) {
    v1::TensorSpec* out = proto->add_tensors();
    out->set_name(tensor.name);
    out->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    out->set_offset(tensor.offset);
    out->set_group(tensor.group);
    out->set_trainable(tensor.trainable);
  }
}

}  // namespace

v1::JobSpec ToProto(const JobSpec& spec) {
  v1::JobSpec proto;
  proto.set_name(spec.name);
  proto.set_world_size(spec.world_size);
  for (const LayerSpec& layer : spec.layers) LayerToProto(layer, proto.add_layers());
  proto.set_groups(spec.groups);
  OptimizerToProto(spec.optimizer, proto.mutable_optimizer());
  proto.set_served_dtype(static_cast<v1::DType>(spec.served_dtype));
  proto.set_gradient_dtype(static_cast<v1::DType>(spec.gradient_dtype));
  proto.set_reduction(static_cast<v1::Reduction>(spec.reduction));
  proto.set_on_non_finite(static_cast<v1::NonFinitePolicy>(spec.on_non_finite));
  proto.set_update_mode(static_cast<v1::UpdateMode>(spec.update_mode));
  proto.set_held_dtype(static_cast<v1::DType>(spec.held_dtype));
  proto.set_clip_scope(static_cast<v1::ClipScope>(spec.clip_scope));
  LossScalingToProto(spec.loss_scaling, proto.mutable_loss_scaling());
  proto.set_keep_undo_state(spec.keep_undo_state);
  proto.set_shard_elements(spec.shard_elements);
  proto.set_slots_per_worker(spec.slots_per_worker);
  proto.set_overflow_bytes(spec.overflow_bytes);
  proto.set_accumulates(spec.accumulates);
  proto.set_durable_every(spec.durable_every);
  proto.set_durability(static_cast<v1::Durability>(spec.durability));
  proto.set_memory_bytes(spec.memory_bytes);
  return proto;
}

StatusOr<JobSpec> FromProto(const v1::JobSpec& proto) {
  RETURN_IF_ERROR(CheckEnums(proto));
  JobSpec spec;
  spec.name = proto.name();
  spec.world_size = proto.world_size();
  spec.layers.reserve(static_cast<size_t>(proto.layers_size()));
  for (const v1::LayerSpec& layer : proto.layers()) spec.layers.push_back(LayerFromProto(layer));
  spec.groups = proto.groups();
  spec.optimizer = OptimizerFromProto(proto.optimizer());
  spec.served_dtype = static_cast<DType>(proto.served_dtype());
  spec.gradient_dtype = static_cast<DType>(proto.gradient_dtype());
  spec.reduction = static_cast<Reduction>(proto.reduction());
  spec.on_non_finite = static_cast<NonFinitePolicy>(proto.on_non_finite());
  spec.update_mode = static_cast<UpdateMode>(proto.update_mode());
  spec.held_dtype = static_cast<DType>(proto.held_dtype());
  spec.clip_scope = static_cast<ClipScope>(proto.clip_scope());
  spec.loss_scaling = LossScalingFromProto(proto.loss_scaling());
  spec.keep_undo_state = proto.keep_undo_state();
  spec.shard_elements = proto.shard_elements();
  spec.slots_per_worker = proto.slots_per_worker();
  spec.overflow_bytes = proto.overflow_bytes();
  spec.accumulates = proto.accumulates();
  spec.durable_every = proto.durable_every();
  spec.durability = static_cast<Durability>(proto.durability());
  spec.memory_bytes = proto.memory_bytes();
  return spec;
}

v1::HyperParameters ToProto(const HyperParameters& values) {
  v1::HyperParameters proto;
  proto.set_lr(values.lr);
  proto.set_weight_decay(values.weight_decay);
  proto.set_beta1(values.beta1);
  proto.set_beta2(values.beta2);
  proto.set_eps(values.eps);
  proto.set_momentum(values.momentum);
  proto.set_dampening(values.dampening);
  proto.set_nesterov(values.nesterov);
  proto.set_lr_decay(values.lr_decay);
  proto.set_max_norm(values.max_norm);
  return proto;
}

HyperParameters FromProto(const v1::HyperParameters& proto) {
  HyperParameters values;
  values.lr = proto.lr();
  values.weight_decay = proto.weight_decay();
  values.beta1 = proto.beta1();
  values.beta2 = proto.beta2();
  values.eps = proto.eps();
  values.momentum = proto.momentum();
  values.dampening = proto.dampening();
  values.nesterov = proto.nesterov();
  values.lr_decay = proto.lr_decay();
  values.max_norm = proto.max_norm();
  return values;
}

v1::Node ToProto(const Node& node) {
  v1::Node proto;
  proto.set_name(node.name);
  proto.set_weight(node.weight);
  proto.set_control_address(node.control_address);
  proto.set_data_address(node.data_address);
  proto.set_shm_path(node.shm_path);
  return proto;
}

Node FromProto(const v1::Node& proto) {
  Node node;
  node.name = proto.name();
  node.weight = proto.weight();
  node.control_address = proto.control_address();
  node.data_address = proto.data_address();
  node.shm_path = proto.shm_path();
  return node;
}

}  // namespace luwu::rpc
