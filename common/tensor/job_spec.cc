#include "common/tensor/job_spec.h"

#include <cmath>
#include <string_view>
#include <unordered_set>

#include "common/tensor/fingerprint.h"
#include "common/tensor/placement.h"

namespace luwu {
namespace {

constexpr uint64_t kShardElementsMax = uint64_t{1} << 26;
constexpr uint64_t kShardElementsStep = 64;
constexpr uint32_t kSlotsMin = 2;
constexpr uint32_t kSlotsMax = 4096;
constexpr uint64_t kOverflowBytesMax = uint64_t{1} << 46;
constexpr size_t kJobNameMax = 128;
constexpr size_t kNameMax = 512;

template <typename... Args>
Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

Status CheckJobName(const std::string& name) {
  if (name.empty() || name.size() > kJobNameMax) {
    return Invalid("the job name has {} characters; give it 1 to {}", name.size(), kJobNameMax);
  }
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '.' && c != '_' && c != '-') {
      return Invalid("job name '{}': use letters, digits, '.', '_' and '-' only", name);
    }
  }
  if (name[0] == '.' || name[0] == '-') {
    return Invalid("job name '{}': start it with a letter, digit or '_'", name);
  }
  return OkStatus();
}

// Names travel in protobuf strings and in log lines.
Status CheckName(std::string_view what, const std::string& name) {
  if (name.empty() || name.size() > kNameMax) {
    return Invalid("{}: its name has {} characters; give it 1 to {}", what, name.size(), kNameMax);
  }
  for (const char c : name) {
    if (c < 0x20 || c > 0x7e) {
      return Invalid("{}: its name has the byte {:#04x}; use printable ASCII only", what,
                     static_cast<unsigned char>(c));
    }
  }
  return OkStatus();
}

Status CheckDType(std::string_view field, DType dtype) {
  if (IsSupported(dtype)) return OkStatus();
  const bool named = DTypeBytes(dtype) != 0;
  return Error(named ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
               "{}: the element type {} cannot be used; choose float32, bfloat16 or float16", field,
               named ? std::string(DTypeName(dtype)) : fmt::format("{}", int(dtype)));
}

Status CheckRange(std::string_view field, uint64_t value, uint64_t min, uint64_t max) {
  if (value >= min && value <= max) return OkStatus();
  return Invalid("{} is {}; choose {} to {}", field, value, min, max);
}

Status CheckOptimizer(const OptimizerSpec& optimizer) {
  if (optimizer.kind != OptimizerKind::kAdamW && optimizer.kind != OptimizerKind::kSgd) {
    return Invalid("optimizer kind {} is not known; choose adamw or sgd", int(optimizer.kind));
  }
  if (optimizer.sgd_momentum && optimizer.kind != OptimizerKind::kSgd) {
    return Invalid("sgd_momentum is set but the optimizer is {}; clear it or choose sgd",
                   OptimizerName(optimizer.kind));
  }
  return OkStatus();
}

Status CheckOptions(const JobSpec& spec) {
  RETURN_IF_ERROR(CheckRange("world_size", spec.world_size, 1, kWorldSizeMax));
  RETURN_IF_ERROR(CheckRange("groups", spec.groups, 1, kGroupsMax));
  RETURN_IF_ERROR(CheckOptimizer(spec.optimizer));
  RETURN_IF_ERROR(CheckDType("served_dtype", spec.served_dtype));
  RETURN_IF_ERROR(CheckDType("gradient_dtype", spec.gradient_dtype));
  if (spec.reduction != Reduction::kSum && spec.reduction != Reduction::kMean) {
    return Invalid("reduction {} is not known; choose sum or mean", int(spec.reduction));
  }
  if (spec.on_non_finite != NonFinitePolicy::kSkip &&
      spec.on_non_finite != NonFinitePolicy::kFail) {
    return Invalid("on_non_finite {} is not known; choose skip or fail", int(spec.on_non_finite));
  }
  if (!spec.keep_undo_state && spec.on_non_finite != NonFinitePolicy::kFail) {
    return Invalid(
        "keep_undo_state is off, so a step with non-finite gradients cannot be skipped as a whole; "
        "set on_non_finite to fail, or keep the undo state");
  }
  RETURN_IF_ERROR(
      CheckRange("shard_elements", spec.shard_elements, kShardElementsStep, kShardElementsMax));
  if (spec.shard_elements % kShardElementsStep != 0) {
    return Invalid("shard_elements is {}; choose a multiple of {}", spec.shard_elements,
                   kShardElementsStep);
  }
  RETURN_IF_ERROR(CheckRange("slots_per_worker", spec.slots_per_worker, kSlotsMin, kSlotsMax));
  return CheckRange("overflow_bytes", spec.overflow_bytes, 0, kOverflowBytesMax);
}

// `names` views the names of the spec's tensors so far.
Status CheckTensors(const LayerSpec& layer, uint32_t groups,
                    std::unordered_set<std::string_view>* names) {
  uint64_t end = 0;
  for (size_t i = 0; i < layer.tensors.size(); ++i) {
    const TensorSpec& tensor = layer.tensors[i];
    RETURN_IF_ERROR(CheckName(fmt::format("tensor {} of layer '{}'", i, layer.name), tensor.name));
    const std::string what = fmt::format("tensor '{}' of layer '{}'", tensor.name, layer.name);
    if (!names->insert(tensor.name).second) {
      return Invalid("{}: another tensor of the job has this name; rename one", what);
    }
    StatusOr<uint64_t> elements = TensorElements(tensor);
    if (!elements.ok()) return Annotate(elements.status(), fmt::format("layer '{}'", layer.name));
    if (tensor.offset < end) {
      return Invalid(
          "{}: it starts at element {}, before element {} where '{}' ends; list tensors "
          "by ascending offset without overlap",
          what, tensor.offset, end, layer.tensors[i - 1].name);
    }
    if (!RangeFits(tensor.offset, *elements, layer.elements)) {
      return Invalid(
          "{}: elements [{}, +{}) lie outside the layer's {}; enlarge the layer or "
          "correct the offset",
          what, tensor.offset, *elements, layer.elements);
    }
    if (tensor.group >= groups) {
      return Invalid("{}: group {} does not exist, the job has {}; raise groups or correct it",
                     what, tensor.group, groups);
    }
    end = tensor.offset + *elements;
  }
  return OkStatus();
}

Status CheckLayers(const JobSpec& spec) {
  RETURN_IF_ERROR(CheckRange("the number of layers", spec.layers.size(), 1, kLayersMax));
  std::unordered_set<std::string_view> layer_names;
  std::unordered_set<std::string_view> tensor_names;
  layer_names.reserve(spec.layers.size());
  uint64_t elements = 0;
  uint64_t shards = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    RETURN_IF_ERROR(CheckName(fmt::format("layer {}", i), layer.name));
    if (!layer_names.insert(layer.name).second) {
      return Invalid("layer {} '{}': another layer has this name; rename one", i, layer.name);
    }
    if (layer.elements == 0) {
      return Invalid("layer {} '{}' has no elements; leave it out", i, layer.name);
    }
    if (layer.tensors.empty()) {
      return Invalid("layer {} '{}' has no tensors; list at least one", i, layer.name);
    }
    if (layer.elements > kElementsMax - elements) {
      return Invalid("layer {} '{}': with its {} elements the job passes the limit of {}", i,
                     layer.name, layer.elements, kElementsMax);
    }
    elements += layer.elements;
    shards += ShardCount(layer.elements, spec.shard_elements);
    if (shards > kShardsMax) {
      return Invalid(
          "layer {} '{}': the job passes the limit of {} shards; raise shard_elements "
          "above {}",
          i, layer.name, kShardsMax, spec.shard_elements);
    }
    RETURN_IF_ERROR(CheckTensors(layer, spec.groups, &tensor_names));
  }
  return OkStatus();
}

}  // namespace

StatusOr<uint64_t> TensorElements(const TensorSpec& tensor) {
  uint64_t elements = 1;
  for (const uint64_t dimension : tensor.shape) {
    if (dimension == 0) {
      return Invalid("tensor '{}': shape [{}] has a zero dimension; leave the tensor out",
                     tensor.name, fmt::join(tensor.shape, ", "));
    }
    const std::optional<uint64_t> product = CheckedMul(elements, dimension);
    if (!product) {
      return Invalid("tensor '{}': the product of shape [{}] does not fit in 64 bits", tensor.name,
                     fmt::join(tensor.shape, ", "));
    }
    elements = *product;
  }
  return elements;
}

Status ValidateHyperParameters(const OptimizerSpec& optimizer, uint32_t group,
                               const HyperParameters& values) {
  struct Field {
    std::string_view name;
    double value;
    bool below_one;  // a decay rate
  };
  const bool adamw = optimizer.kind == OptimizerKind::kAdamW;
  const Field common[] = {{"lr", values.lr, false}, {"weight_decay", values.weight_decay, false}};
  const Field of_adamw[] = {
      {"beta1", values.beta1, true}, {"beta2", values.beta2, true}, {"eps", values.eps, false}};
  const Field of_sgd[] = {{"momentum", values.momentum, false}};
  const auto check = [&](const Field& field) -> Status {
    if (!std::isfinite(field.value) || field.value < 0) {
      return Invalid("group {}: {} is {}; it must be finite and not negative", group, field.name,
                     field.value);
    }
    if (field.below_one && field.value >= 1) {
      return Invalid("group {}: {} is {}; it must be less than 1", group, field.name, field.value);
    }
    return OkStatus();
  };
  for (const Field& field : common) RETURN_IF_ERROR(check(field));
  if (adamw) {
    for (const Field& field : of_adamw) RETURN_IF_ERROR(check(field));
    return OkStatus();
  }
  for (const Field& field : of_sgd) RETURN_IF_ERROR(check(field));
  if (!std::isfinite(values.dampening)) {
    return Invalid("group {}: dampening is {}; it must be finite", group, values.dampening);
  }
  if (values.momentum != 0 && !optimizer.sgd_momentum) {
    return Invalid(
        "group {}: momentum is {}, but the job was created without sgd_momentum and "
        "keeps no momentum buffer; create it with sgd_momentum or pass 0",
        group, values.momentum);
  }
  if (values.nesterov && (values.momentum == 0 || values.dampening != 0)) {
    return Invalid("group {}: nesterov needs a momentum above 0 and no dampening", group);
  }
  return OkStatus();
}

Status ValidateJobSpec(const JobSpec& spec) {
  RETURN_IF_ERROR(CheckJobName(spec.name));
  Status status = CheckOptions(spec);
  if (status.ok()) status = CheckLayers(spec);
  return Annotate(status, fmt::format("job '{}'", spec.name));
}

std::string_view OptimizerName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kUnspecified:
      break;
  }
  return "unspecified";
}

}  // namespace luwu
