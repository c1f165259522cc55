// What job_spec.h says about optimizers: names, and what is wrong with a spec or with a step's
// hyper-parameters.
#include <cmath>
#include <span>
#include <string_view>

#include "common/tensor/job_spec.h"

namespace luwu {
namespace {

template <typename... Args>
Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

bool IsAdam(OptimizerKind kind) {
  return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamW;
}

struct Field {
  std::string_view name;
  double value = 0;
  bool below_one = false;  // a decay rate
};

Status CheckFields(uint32_t group, std::span<const Field> fields) {
  for (const Field& field : fields) {
    // Updates compute in float32, where a value beyond its range is an infinity.
    if (!std::isfinite(static_cast<float>(field.value)) || field.value < 0) {
      return Invalid("group {}: {} is {}; it must be finite in float32 and not negative", group,
                     field.name, field.value);
    }
    if (field.below_one && field.value >= 1) {
      return Invalid("group {}: {} is {}; it must be less than 1", group, field.name, field.value);
    }
  }
  return OkStatus();
}

Status CheckSgd(const OptimizerSpec& optimizer, uint32_t group, const HyperParameters& values) {
  const Field fields[] = {{"momentum", values.momentum}};
  RETURN_IF_ERROR(CheckFields(group, fields));
  if (!std::isfinite(static_cast<float>(values.dampening))) {
    return Invalid("group {}: dampening is {}; it must be finite in float32", group,
                   values.dampening);
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

}  // namespace

Status ValidateOptimizerSpec(const OptimizerSpec& optimizer) {
  const std::string_view name = OptimizerName(optimizer.kind);
  if (name.empty()) {
    return Invalid("optimizer kind {} is not known; choose adamw, adam, sgd, lion or adagrad",
                   int(optimizer.kind));
  }
  if (optimizer.sgd_momentum && optimizer.kind != OptimizerKind::kSgd) {
    return Invalid("sgd_momentum is set but the optimizer is {}; clear it or choose sgd", name);
  }
  if (optimizer.amsgrad && !IsAdam(optimizer.kind)) {
    return Invalid("amsgrad is set but the optimizer is {}; clear it or choose adam or adamw",
                   name);
  }
  if (StatePrecisionName(optimizer.state_precision).empty()) {
    return Invalid("state_precision {} is not known; choose float32, bfloat16 or blockwise8",
                   int(optimizer.state_precision));
  }
  if (MasterFormatName(optimizer.master_format).empty()) {
    return Invalid("master_format {} is not known; choose float32 or split",
                   int(optimizer.master_format));
  }
  if (optimizer.amsgrad && optimizer.state_precision == StatePrecision::kBlockwise8) {
    return Invalid(
        "amsgrad keeps a maximum, which 8-bit rounding would push up step by step; choose "
        "state_precision float32 or bfloat16, or no amsgrad");
  }
  const double initial = optimizer.initial_accumulator;
  if (!std::isfinite(static_cast<float>(initial)) || initial < 0) {
    return Invalid("initial_accumulator is {}; it must be finite in float32 and not negative",
                   initial);
  }
  if (initial != 0 && optimizer.kind != OptimizerKind::kAdagrad) {
    return Invalid("initial_accumulator is {} but the optimizer is {}; pass 0 or choose adagrad",
                   initial, name);
  }
  return OkStatus();
}

Status ValidateHyperParameters(const OptimizerSpec& optimizer, uint32_t group,
                               const HyperParameters& values) {
  const Field common[] = {
      {"lr", values.lr}, {"weight_decay", values.weight_decay}, {"max_norm", values.max_norm}};
  RETURN_IF_ERROR(CheckFields(group, common));
  const Field betas[] = {{"beta1", values.beta1, true}, {"beta2", values.beta2, true}};
  const Field eps[] = {{"eps", values.eps}};
  const Field lr_decay[] = {{"lr_decay", values.lr_decay}};
  switch (optimizer.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      RETURN_IF_ERROR(CheckFields(group, betas));
      return CheckFields(group, eps);
    case OptimizerKind::kLion:
      return CheckFields(group, betas);
    case OptimizerKind::kAdagrad:
      RETURN_IF_ERROR(CheckFields(group, eps));
      return CheckFields(group, lr_decay);
    case OptimizerKind::kSgd:
      return CheckSgd(optimizer, group, values);
    case OptimizerKind::kUnspecified:
      break;
  }
  return Invalid("the optimizer is not specified");
}

std::string_view OptimizerName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kUnspecified:
      break;
  }
  return "";
}

std::string_view StatePrecisionName(StatePrecision precision) {
  switch (precision) {
    case StatePrecision::kFloat32:
      return "float32";
    case StatePrecision::kBFloat16:
      return "bfloat16";
    case StatePrecision::kBlockwise8:
      return "blockwise8";
    case StatePrecision::kUnspecified:
      break;
  }
  return "";
}

std::string_view MasterFormatName(MasterFormat format) {
  switch (format) {
    case MasterFormat::kFloat32:
      return "float32";
    case MasterFormat::kSplit:
      return "split";
    case MasterFormat::kUnspecified:
      break;
  }
  return "";
}

std::string_view UpdateModeName(UpdateMode mode) {
  switch (mode) {
    case UpdateMode::kImmediate:
      return "immediate";
    case UpdateMode::kDeferred:
      return "deferred";
    case UpdateMode::kSpeculative:
      return "speculative";
    case UpdateMode::kUnspecified:
      break;
  }
  return "";
}

std::string_view ClipScopeName(ClipScope scope) {
  switch (scope) {
    case ClipScope::kNone:
      return "none";
    case ClipScope::kGlobal:
      return "global";
    case ClipScope::kGroup:
      return "group";
    case ClipScope::kLayer:
      return "layer";
    case ClipScope::kUnspecified:
      break;
  }
  return "";
}

std::string_view DurabilityName(Durability durability) {
  switch (durability) {
    case Durability::kUnspecified:
      break;
    case Durability::kMemory:
      return "memory";
    case Durability::kLogged:
      return "logged";
    case Durability::kSynced:
      return "synced";
  }
  return "";
}

}  // namespace luwu
