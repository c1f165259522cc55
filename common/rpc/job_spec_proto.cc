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
  if (!v1::OptimizerKind_IsValid(proto.optimizer().kind())) {
    return UnknownValue("optimizer.kind", proto.optimizer().kind());
  }
  if (!v1::Reduction_IsValid(proto.reduction())) {
    return UnknownValue("reduction", proto.reduction());
  }
  if (!v1::NonFinitePolicy_IsValid(proto.on_non_finite())) {
    return UnknownValue("on_non_finite", proto.on_non_finite());
  }
  return OkStatus();
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
  proto.mutable_optimizer()->set_kind(static_cast<v1::OptimizerKind>(spec.optimizer.kind));
  proto.mutable_optimizer()->set_sgd_momentum(spec.optimizer.sgd_momentum);
  proto.set_served_dtype(static_cast<v1::DType>(spec.served_dtype));
  proto.set_gradient_dtype(static_cast<v1::DType>(spec.gradient_dtype));
  proto.set_reduction(static_cast<v1::Reduction>(spec.reduction));
  proto.set_on_non_finite(static_cast<v1::NonFinitePolicy>(spec.on_non_finite));
  proto.set_keep_undo_state(spec.keep_undo_state);
  proto.set_shard_elements(spec.shard_elements);
  proto.set_slots_per_worker(spec.slots_per_worker);
  proto.set_overflow_bytes(spec.overflow_bytes);
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
  spec.optimizer.kind = static_cast<OptimizerKind>(proto.optimizer().kind());
  spec.optimizer.sgd_momentum = proto.optimizer().sgd_momentum();
  spec.served_dtype = static_cast<DType>(proto.served_dtype());
  spec.gradient_dtype = static_cast<DType>(proto.gradient_dtype());
  spec.reduction = static_cast<Reduction>(proto.reduction());
  spec.on_non_finite = static_cast<NonFinitePolicy>(proto.on_non_finite());
  spec.keep_undo_state = proto.keep_undo_state();
  spec.shard_elements = proto.shard_elements();
  spec.slots_per_worker = proto.slots_per_worker();
  spec.overflow_bytes = proto.overflow_bytes();
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
