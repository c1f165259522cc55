// How two specs are told apart: in words and by fingerprint. Both walk every field, so a field
// added to JobSpec is added here.
#include <bit>

#include "common/tensor/fingerprint.h"
#include "common/tensor/job_spec.h"

namespace luwu {
namespace {

std::string Text(uint64_t value) { return fmt::format("{}", value); }
std::string Text(bool value) { return value ? "yes" : "no"; }
std::string Text(DType value) { return std::string(DTypeName(value)); }
std::string Text(OptimizerKind value) { return std::string(OptimizerName(value)); }
std::string Text(double value) { return fmt::format("{}", value); }
std::string Text(StatePrecision value) { return std::string(StatePrecisionName(value)); }
std::string Text(MasterFormat value) { return std::string(MasterFormatName(value)); }
std::string Text(UpdateMode value) { return std::string(UpdateModeName(value)); }
std::string Text(std::string_view value) { return std::string(value); }
std::string Text(ClipScope value) { return std::string(ClipScopeName(value)); }
std::string Text(Reduction value) { return value == Reduction::kSum ? "sum" : "mean"; }
std::string Text(NonFinitePolicy value) {
  return value == NonFinitePolicy::kSkip ? "skip" : "fail";
}
std::string Text(const std::string& value) { return fmt::format("'{}'", value); }
std::string Text(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Keeps the first difference only.
class Difference {
 public:
  template <typename T>
  void Compare(std::string_view what, const T& here, const T& in_job) {
    if (!text_.empty() || here == in_job) return;
    text_ = fmt::format("{}{}: {} here, {} in the job", where_, what, Text(here), Text(in_job));
  }
  void Enter(std::string where) { where_ = std::move(where); }
  bool found() const { return !text_.empty(); }
  std::string TakeText() { return std::move(text_); }

 private:
  std::string where_;
  std::string text_;
};

void CompareOptimizer(const OptimizerSpec& here, const OptimizerSpec& in_job, Difference* out) {
  out->Compare("optimizer", here.kind, in_job.kind);
  out->Compare("sgd_momentum", here.sgd_momentum, in_job.sgd_momentum);
  out->Compare("amsgrad", here.amsgrad, in_job.amsgrad);
  out->Compare("state_precision", here.state_precision, in_job.state_precision);
  out->Compare("master_format", here.master_format, in_job.master_format);
  out->Compare("rounding_seed", here.rounding_seed, in_job.rounding_seed);
  out->Compare("initial_accumulator", here.initial_accumulator, in_job.initial_accumulator);
}

void CompareLossScaling(const LossScaling& here, const LossScaling& in_job, Difference* out) {
  out->Compare("loss_scaling.initial_scale", here.initial_scale, in_job.initial_scale);
  out->Compare("loss_scaling.growth_factor", here.growth_factor, in_job.growth_factor);
  out->Compare("loss_scaling.backoff_factor", here.backoff_factor, in_job.backoff_factor);
  out->Compare("loss_scaling.growth_interval", uint64_t{here.growth_interval},
               uint64_t{in_job.growth_interval});
}

void CompareOptions(const JobSpec& here, const JobSpec& in_job, Difference* out) {
  out->Compare("name", here.name, in_job.name);
  out->Compare("world_size", uint64_t{here.world_size}, uint64_t{in_job.world_size});
  out->Compare("groups", uint64_t{here.groups}, uint64_t{in_job.groups});
  CompareOptimizer(here.optimizer, in_job.optimizer, out);
  out->Compare("served_dtype", here.served_dtype, in_job.served_dtype);
  out->Compare("gradient_dtype", here.gradient_dtype, in_job.gradient_dtype);
  out->Compare("reduction", here.reduction, in_job.reduction);
  out->Compare("on_non_finite", here.on_non_finite, in_job.on_non_finite);
  out->Compare("update_mode", here.update_mode, in_job.update_mode);
  out->Compare("held_dtype", here.held_dtype, in_job.held_dtype);
  out->Compare("clip_scope", here.clip_scope, in_job.clip_scope);
  CompareLossScaling(here.loss_scaling, in_job.loss_scaling, out);
  out->Compare("keep_undo_state", here.keep_undo_state, in_job.keep_undo_state);
  out->Compare("shard_elements", here.shard_elements, in_job.shard_elements);
  out->Compare("slots_per_worker", uint64_t{here.slots_per_worker},
               uint64_t{in_job.slots_per_worker});
  out->Compare("overflow_bytes", here.overflow_bytes, in_job.overflow_bytes);
  out->Compare("accumulates", here.accumulates, in_job.accumulates);
  out->Compare("durable_every", uint64_t{here.durable_every}, uint64_t{in_job.durable_every});
  out->Compare("durability", DurabilityName(here.durability), DurabilityName(in_job.durability));
  out->Compare("memory_bytes", here.memory_bytes, in_job.memory_bytes);
  out->Compare("number of layers", uint64_t{here.layers.size()}, uint64_t{in_job.layers.size()});
}

void CompareLayer(size_t index, const LayerSpec& here, const LayerSpec& in_job, Difference* out) {
  out->Enter(fmt::format("layer {} '{}': ", index, here.name));
  out->Compare("name", here.name, in_job.name);
  out->Compare("elements", here.elements, in_job.elements);
  out->Compare("number of tensors", uint64_t{here.tensors.size()}, uint64_t{in_job.tensors.size()});
  for (size_t i = 0; i < here.tensors.size() && !out->found(); ++i) {
    const TensorSpec& mine = here.tensors[i];
    const TensorSpec& other = in_job.tensors[i];
    if (mine == other) continue;
    out->Enter(fmt::format("layer {} '{}', tensor {} '{}': ", index, here.name, i, mine.name));
    out->Compare("name", mine.name, other.name);
    out->Compare("shape", mine.shape, other.shape);
    out->Compare("offset", mine.offset, other.offset);
    out->Compare("group", uint64_t{mine.group}, uint64_t{other.group});
    out->Compare("trainable", mine.trainable, other.trainable);
  }
}

void AddOptimizer(const OptimizerSpec& optimizer, Fingerprint* out) {
  out->Add(static_cast<uint64_t>(optimizer.kind));
  out->Add(uint64_t{optimizer.sgd_momentum});
  out->Add(uint64_t{optimizer.amsgrad});
  out->Add(static_cast<uint64_t>(optimizer.state_precision));
  out->Add(static_cast<uint64_t>(optimizer.master_format));
  out->Add(optimizer.rounding_seed);
  out->Add(std::bit_cast<uint64_t>(optimizer.initial_accumulator));
}

}  // namespace

std::string DescribeDifference(const JobSpec& here, const JobSpec& in_job) {
  Difference difference;
  CompareOptions(here, in_job, &difference);
  for (size_t i = 0; i < here.layers.size() && !difference.found(); ++i) {
    if (here.layers[i] == in_job.layers[i]) continue;
    CompareLayer(i, here.layers[i], in_job.layers[i], &difference);
  }
  return difference.TakeText();
}

uint64_t FingerprintOf(const JobSpec& spec) {
  Fingerprint out;
  out.Add(spec.name);
  out.Add(spec.world_size);
  out.Add(spec.groups);
  AddOptimizer(spec.optimizer, &out);
  out.Add(static_cast<uint64_t>(spec.served_dtype));
  out.Add(static_cast<uint64_t>(spec.gradient_dtype));
  out.Add(static_cast<uint64_t>(spec.reduction));
  out.Add(static_cast<uint64_t>(spec.on_non_finite));
  out.Add(static_cast<uint64_t>(spec.update_mode));
  out.Add(static_cast<uint64_t>(spec.held_dtype));
  out.Add(static_cast<uint64_t>(spec.clip_scope));
  out.Add(std::bit_cast<uint64_t>(spec.loss_scaling.initial_scale));
  out.Add(std::bit_cast<uint64_t>(spec.loss_scaling.growth_factor));
  out.Add(std::bit_cast<uint64_t>(spec.loss_scaling.backoff_factor));
  out.Add(spec.loss_scaling.growth_interval);
  out.Add(uint64_t{spec.keep_undo_state});
  out.Add(spec.shard_elements);
  out.Add(spec.slots_per_worker);
  out.Add(spec.overflow_bytes);
  out.Add(uint64_t{spec.accumulates});
  out.Add(spec.durable_every);
  out.Add(static_cast<uint64_t>(spec.durability));
  out.Add(spec.memory_bytes);
  out.Add(spec.layers.size());
  for (const LayerSpec& layer : spec.layers) {
    out.Add(layer.name);
    out.Add(layer.elements);
    out.Add(layer.tensors.size());
    for (const TensorSpec& tensor : layer.tensors) {
      out.Add(tensor.name);
      out.Add(tensor.shape.size());
      for (const uint64_t dimension : tensor.shape) out.Add(dimension);
      out.Add(tensor.offset);
      out.Add(tensor.group);
      out.Add(uint64_t{tensor.trainable});
    }
  }
  return out.Value();
}

}  // namespace luwu
