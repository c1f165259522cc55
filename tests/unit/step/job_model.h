// The step rule by brute force: keeps every contribution of a step, sorts them by (micro-step,
// rank), adds them up in fp32 one by one, scales, and applies the optimizer (AdamW or SGD, fp32
// state) element by element. Knows nothing of slots, segments, blocks, folding, sessions, vectors
// or update modes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "common/tensor/dtype.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"

namespace luwu {

class JobModel {
 public:
  // `spec` outlives it.
  explicit JobModel(const JobSpec& spec) : spec_(&spec) {
    for (const LayerSpec& layer : spec.layers) {
      arrays_.push_back(std::vector<std::vector<float>>(3, std::vector<float>(layer.elements)));
    }
  }

  std::vector<float>& array(uint32_t layer, uint32_t which) { return arrays_[layer][which]; }

  // `values` of the whole layer must live until EndStep.
  void Push(uint32_t layer, uint32_t shard, uint32_t micro_step, uint32_t rank,
            const std::vector<float>* values) {
    pushed_[{layer, shard}].push_back({micro_step, rank, values});
  }

  // Norm of the step's gradients (before clipping) of those that `counts` (layer, group) says, for
  // comparison with what the engine found; in long double.
  long double Norm(float loss_scale, const std::function<bool(uint32_t, uint32_t)>& counts) {
    long double squares = 0;
    ForEachSum([&](uint32_t layer, const TensorSpec& tensor, uint64_t, uint64_t, float sum) {
      const long double gradient = sum * Scale(loss_scale, 1);
      if (counts(layer, tensor.group)) squares += gradient * gradient;
    });
    return std::sqrt(squares);
  }

  // `factor` of (layer, group). A skipped step changes nothing.
  void EndStep(const std::vector<HyperParameters>& groups, float loss_scale = 1,
               const std::function<double(uint32_t, uint32_t)>& factor = {}) {
    ForEachSum(
        [&](uint32_t layer, const TensorSpec& tensor, uint64_t shard, uint64_t i, float sum) {
          const double clip = factor ? factor(layer, tensor.group) : 1.0;
          Rule(groups[tensor.group], applied_[{layer, shard}], sum * Scale(loss_scale, clip),
               {&arrays_[layer][0][i], &arrays_[layer][1][i], &arrays_[layer][2][i]});
        });
    for (const auto& [key, contributions] : pushed_) ++applied_[key];
    pushed_.clear();
  }
  void SkipStep() { pushed_.clear(); }

 private:
  using Contribution = std::tuple<uint32_t, uint32_t, const std::vector<float>*>;

  static float Rounded(DType dtype, float value) {
    float out = 0;
    std::byte wire[4];
    const auto* in = reinterpret_cast<const std::byte*>(&value);
    ConvertElements(DType::kFloat32, in, dtype, wire, 1);
    ConvertElements(dtype, wire, DType::kFloat32, reinterpret_cast<std::byte*>(&out), 1);
    return out;
  }

  float Scale(float loss_scale, double factor) const {
    const double workers = spec_->reduction == Reduction::kMean ? spec_->world_size : 1;
    return static_cast<float>(1.0 / workers / double(loss_scale) * factor);
  }

  // Calls `use(layer, tensor, shard, element of the layer, sum)` for every trainable element of
  // every shard that somebody pushed.
  template <typename Use>
  void ForEachSum(const Use& use) {
    for (auto& [key, contributions] : pushed_) {
      std::sort(contributions.begin(), contributions.end());
      const LayerSpec& layer = spec_->layers[key.first];
      const ShardRange range = RangeOfShard(layer.elements, spec_->shard_elements, key.second);
      for (const TensorSpec& tensor : layer.tensors) {
        for (uint64_t i = range.first; i < range.first + range.elements; ++i) {
          if (!tensor.trainable || i < tensor.offset || i >= tensor.offset + tensor.shape[0]) {
            continue;
          }
          float sum = -0.0f;  // -0 + x is x
          for (const auto& [micro_step, rank, values] : contributions) {
            sum += Rounded(spec_->gradient_dtype, (*values)[i]);
          }
          use(key.first, tensor, key.second, i, Rounded(spec_->held_dtype, sum));
        }
      }
    }
  }

  void Rule(const HyperParameters& h, uint64_t applied, float g, std::array<float*, 3> state) {
    const auto [p, m, v] = state;
    if (spec_->optimizer.kind == OptimizerKind::kAdamW) {
      const double t = double(applied) + 1;
      *p = *p * float(1 - h.lr * h.weight_decay);
      *m = *m * float(h.beta1) + float(1 - h.beta1) * g;
      *v = *v * float(h.beta2) + float(1 - h.beta2) * g * g;
      const float root = std::sqrt(*v) / float(std::sqrt(1 - std::pow(h.beta2, t))) + float(h.eps);
      *p = *p + float(-(h.lr / (1 - std::pow(h.beta1, t)))) * *m / root;
      return;
    }
    if (h.weight_decay != 0) g = g + float(h.weight_decay) * *p;
    if (h.momentum != 0) {
      *m = applied == 0 ? g : *m * float(h.momentum) + float(1 - h.dampening) * g;
      g = h.nesterov ? g + float(h.momentum) * *m : *m;
    }
    *p = *p - float(h.lr) * g;
  }

  const JobSpec* spec_;
  std::vector<std::vector<std::vector<float>>> arrays_;  // by layer and array
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Contribution>> pushed_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> applied_;
};

}  // namespace luwu
