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

bool IsUndoable(const JobSpec& spec) {
  return spec.keep_undo_state || spec.update_mode == UpdateMode::kDeferred;
}

Status CheckUpdateMode(const JobSpec& spec) {
  if (UpdateModeName(spec.update_mode).empty()) {
    return Invalid("update_mode {} is not known; choose immediate, deferred or speculative",
                   int(spec.update_mode));
  }
  if (ClipScopeName(spec.clip_scope).empty()) {
    return Invalid("clip_scope {} is not known; choose none, global, group or layer",
                   int(spec.clip_scope));
  }
  if (spec.held_dtype != DType::kFloat32 && spec.held_dtype != DType::kBFloat16) {
    return Invalid("held_dtype is {}; choose float32 or bfloat16", DTypeName(spec.held_dtype));
  }
  const bool immediate = spec.update_mode == UpdateMode::kImmediate;
  if (immediate && spec.clip_scope != ClipScope::kNone) {
    return Invalid(
        "clip_scope {} needs the norm of the whole step before the first update; choose "
        "update_mode "
        "deferred or speculative",
        ClipScopeName(spec.clip_scope));
  }
  if (immediate && spec.held_dtype != DType::kFloat32) {
    return Invalid(
        "held_dtype {} without held sums; choose float32, or update_mode deferred or "
        "speculative",
        DTypeName(spec.held_dtype));
  }
  if (spec.clip_scope == ClipScope::kLayer && spec.layers.size() > kLayerUnitsMax) {
    return Invalid("clip_scope layer takes up to {} layers, the job has {}; choose global or group",
                   kLayerUnitsMax, spec.layers.size());
  }
  if (spec.update_mode == UpdateMode::kSpeculative && !spec.keep_undo_state) {
    return Invalid(
        "update_mode speculative works in a second generation of the state; set keep_undo_state, "
        "or "
        "choose deferred");
  }
  if (!IsUndoable(spec) && spec.on_non_finite != NonFinitePolicy::kFail) {
    return Invalid(
        "keep_undo_state is off, so a step with non-finite gradients cannot be skipped as a whole; "
        "set on_non_finite to fail, keep the undo state, or choose update_mode deferred");
  }
  return OkStatus();
}

Status CheckDurability(const JobSpec& spec) {
  if (DurabilityName(spec.durability).empty()) {
    return Invalid("durability {} is not known; choose memory, logged or synced",
                   int(spec.durability));
  }
  if (spec.durability != Durability::kMemory && spec.durable_every == 0) {
    return Invalid("durability {} without durable points; set durable_every to 1 or more",
                   DurabilityName(spec.durability));
  }
  return OkStatus();
}

Status CheckLossScaling(const JobSpec& spec) {
  const LossScaling& scaling = spec.loss_scaling;
  const float scale = static_cast<float>(scaling.initial_scale);
  if (scaling.initial_scale == 0) return OkStatus();
  if (!std::isnormal(scale) || scale < 0) {
    return Invalid("loss_scaling.initial_scale is {}; choose a positive float32, or 0 for none",
                   scaling.initial_scale);
  }
  if (!(scaling.growth_factor >= 1 && scaling.growth_factor <= 65536)) {
    return Invalid("loss_scaling.growth_factor is {}; choose 1 to 65536", scaling.growth_factor);
  }
  if (!(scaling.backoff_factor > 0 && scaling.backoff_factor <= 1)) {
    return Invalid("loss_scaling.backoff_factor is {}; choose more than 0, at most 1",
                   scaling.backoff_factor);
  }
  if (spec.update_mode == UpdateMode::kImmediate) {
    return Invalid(
        "loss scaling decides about a step as a whole; choose update_mode deferred or speculative");
  }
  if (spec.on_non_finite != NonFinitePolicy::kSkip) {
    return Invalid("loss scaling finds its scale by skipping steps; set on_non_finite to skip");
  }
  return OkStatus();
}

Status CheckOptions(const JobSpec& spec) {
  RETURN_IF_ERROR(CheckRange("world_size", spec.world_size, 1, kWorldSizeMax));
  RETURN_IF_ERROR(CheckRange("groups", spec.groups, 1, kGroupsMax));
  RETURN_IF_ERROR(ValidateOptimizerSpec(spec.optimizer));
  RETURN_IF_ERROR(CheckDType("served_dtype", spec.served_dtype));
  RETURN_IF_ERROR(CheckDType("gradient_dtype", spec.gradient_dtype));
  if (spec.reduction != Reduction::kSum && spec.reduction != Reduction::kMean) {
    return Invalid("reduction {} is not known; choose sum or mean", int(spec.reduction));
  }
  if (spec.on_non_finite != NonFinitePolicy::kSkip &&
      spec.on_non_finite != NonFinitePolicy::kFail) {
    return Invalid("on_non_finite {} is not known; choose skip or fail", int(spec.on_non_finite));
  }
  RETURN_IF_ERROR(CheckUpdateMode(spec));
  RETURN_IF_ERROR(CheckDurability(spec));
  RETURN_IF_ERROR(CheckLossScaling(spec));
  if (spec.optimizer.master_format == MasterFormat::kSplit &&
      spec.served_dtype != DType::kBFloat16) {
    return Invalid(
        "master_format split keeps half of each master in the served copy, which is {}; choose "
        "served_dtype bfloat16 or master_format float32",
        DTypeName(spec.served_dtype));
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
    if (tensor.shape.size() > kDimensionsMax) {
      return Invalid("{}: it has {} dimensions; at most {} are possible", what, tensor.shape.size(),
                     kDimensionsMax);
    }
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

Status ValidateJobSpec(const JobSpec& spec) {
  RETURN_IF_ERROR(CheckJobName(spec.name));
  Status status = CheckOptions(spec);
  if (status.ok()) status = CheckLayers(spec);
  return Annotate(status, fmt::format("job '{}'", spec.name));
}

Status ValidateStep(const JobSpec& spec, const std::vector<HyperParameters>& groups) {
  if (groups.size() != spec.groups) {
    return Invalid("the step was begun with hyper-parameters for {} groups; job '{}' has {}",
                   groups.size(), spec.name, spec.groups);
  }
  const bool one_limit =
      spec.clip_scope == ClipScope::kGlobal || spec.clip_scope == ClipScope::kLayer;
  for (uint32_t i = 0; i < spec.groups; ++i) {
    RETURN_IF_ERROR(ValidateHyperParameters(spec.optimizer, i, groups[i]));
    if (spec.clip_scope == ClipScope::kNone && groups[i].max_norm != 0) {
      return Invalid(
          "group {}: max_norm is {}, but the job was created with clip_scope none; pass 0, or "
          "create it with clip_scope global, group or layer",
          i, groups[i].max_norm);
    }
    if (one_limit && groups[i].max_norm != groups[0].max_norm) {
      return Invalid(
          "max_norm is {} in group 0 and {} in group {}; with clip_scope {} pass the same to all",
          groups[0].max_norm, groups[i].max_norm, i, ClipScopeName(spec.clip_scope));
    }
  }
  return OkStatus();
}

bool HoldsSums(const JobSpec& spec) { return spec.update_mode != UpdateMode::kImmediate; }

bool SumsInHeld(const JobSpec& spec) {
  return HoldsSums(spec) && spec.held_dtype == DType::kFloat32;
}

bool KeepsRunningSums(const JobSpec& spec) { return spec.accumulates && !SumsInHeld(spec); }

uint64_t SpecBytes(const JobSpec& spec) {
  constexpr uint64_t kHeapBlock = 32;  // what an allocation costs besides its bytes
  uint64_t bytes = sizeof(JobSpec) + spec.name.size() + kHeapBlock;
  for (const LayerSpec& layer : spec.layers) {
    bytes += sizeof(LayerSpec) + layer.name.size() + 2 * kHeapBlock;
    for (const TensorSpec& tensor : layer.tensors) {
      bytes += sizeof(TensorSpec) + tensor.name.size() + 2 * kHeapBlock;
      bytes += tensor.shape.size() * sizeof(uint64_t);
    }
  }
  return bytes;
}

bool KeepsUndoState(const JobSpec& spec) {
  return spec.keep_undo_state && spec.update_mode != UpdateMode::kDeferred;
}

}  // namespace luwu
