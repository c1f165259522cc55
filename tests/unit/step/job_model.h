// The step rule by brute force: keeps every contribution of a step, sorts them by (micro-step,
// rank), adds them up in fp32 one by one, scales, applies the optimizer element by element
// (tests/unit/optim/scalar_rules.h), and keeps of the state what its format keeps
// (format_values.h). Knows nothing of slots, folding, sessions, vectors, bytes, disks or update
// modes.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "common/tensor/dtype.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "tests/unit/optim/format_values.h"
#include "tests/unit/optim/scalar_rules.h"

namespace luwu {

class JobModel {
 public:
  // `spec` outlives it.
  explicit JobModel(const JobSpec& spec) : spec_(&spec) {
    float initial = static_cast<float>(spec.optimizer.initial_accumulator);
    if (FormatOf(1) == optim::StateFormat::kBFloat16) initial = Rounded(DType::kBFloat16, initial);
    for (const LayerSpec& layer : spec.layers) {
      arrays_.push_back(std::vector<std::vector<float>>(4, std::vector<float>(layer.elements)));
      first_elements_.push_back(elements_);
      elements_ += layer.elements;
      for (const TensorSpec& tensor : layer.tensors) {
        if (!tensor.trainable) continue;
        std::fill_n(arrays_.back()[1].begin() + tensor.offset, tensor.shape[0], initial);
      }
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
    ForEachBlock([&](const Block& block) {
      if (!counts(block.layer, block.group)) return;
      for (const float sum : block.sums) {
        const long double gradient = sum * Scale(loss_scale, 1);
        squares += gradient * gradient;
      }
    });
    return std::sqrt(squares);
  }

  // `factor` of (layer, group). A skipped step changes nothing.
  void EndStep(const std::vector<HyperParameters>& groups, float loss_scale = 1,
               const std::function<double(uint32_t, uint32_t)>& factor = {}) {
    ForEachBlock([&](const Block& block) {
      const double clip = factor ? factor(block.layer, block.group) : 1.0;
      Update(block, groups[block.group], Scale(loss_scale, clip));
    });
    for (const auto& [key, contributions] : pushed_) ++applied_[key];
    pushed_.clear();
  }
  void SkipStep() { pushed_.clear(); }

 private:
  using Contribution = std::tuple<uint32_t, uint32_t, const std::vector<float>*>;
  // What shares the scale of an 8-bit format: a tensor's elements between two multiples of 256 of
  // their shard.
  struct Block {
    uint32_t layer, group, shard;
    uint64_t shard_first, first;  // elements of the layer
    std::vector<float> sums;
  };

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

  // Of every trainable tensor of every shard that somebody pushed.
  void ForEachBlock(const std::function<void(const Block&)>& use) {
    for (auto& [key, contributions] : pushed_) {
      std::sort(contributions.begin(), contributions.end());
      const auto [layer, shard] = key;
      const uint64_t elements = spec_->layers[layer].elements;
      const ShardRange range = RangeOfShard(elements, spec_->shard_elements, shard);
      for (const TensorSpec& tensor : spec_->layers[layer].tensors) {
        if (!tensor.trainable) continue;
        uint64_t at = std::max(tensor.offset, range.first);
        const uint64_t end =
            std::min(tensor.offset + tensor.shape[0], range.first + range.elements);
        while (at < end) {
          Block block = {layer, tensor.group, shard, range.first, at, {}};
          do {
            block.sums.push_back(Sum(contributions, at++));
          } while (at < end && (at - range.first) % 256 != 0);
          use(block);
        }
      }
    }
  }

  float Sum(const std::vector<Contribution>& contributions, uint64_t element) const {
    float sum = -0.0f;  // -0 + x is x
    for (const auto& [micro_step, rank, values] : contributions) {
      sum += Rounded(spec_->gradient_dtype, (*values)[element]);
    }
    return Rounded(spec_->held_dtype, sum);
  }

  void Update(const Block& block, const HyperParameters& hyper, float scale) {
    std::vector<std::vector<float>>& arrays = arrays_[block.layer];
    const uint64_t applied = applied_[{block.layer, block.shard}];
    const optim::testing::Setting setting = {"", spec_->optimizer, hyper};
    for (uint64_t i = 0; i < block.sums.size(); ++i) {
      float state[4];
      for (uint32_t k = 0; k < 4; ++k) state[k] = arrays[k][block.first + i];
      optim::testing::ScalarUpdate(setting, applied, block.sums[i] * scale, state);
      for (uint32_t k = 0; k < 4; ++k) arrays[k][block.first + i] = state[k];
    }
    const optim::RoundingKey key = optim::MakeRoundingKey(
        spec_->optimizer.rounding_seed, applied, first_elements_[block.layer] + block.shard_first);
    for (uint32_t k = 1; k < 4; ++k) {
      optim::testing::KeepBlock(FormatOf(k), key, block.first - block.shard_first, k,
                                std::span(arrays[k]).subspan(block.first, block.sums.size()));
    }
  }

  optim::StateFormat FormatOf(uint32_t array) const {
    const OptimizerSpec& optimizer = spec_->optimizer;
    if (optimizer.state_precision == StatePrecision::kFloat32) return optim::StateFormat::kFloat32;
    if (optimizer.state_precision == StatePrecision::kBFloat16) {
      return optim::StateFormat::kBFloat16;
    }
    const bool squares = array > 1 || optimizer.kind == OptimizerKind::kAdagrad;
    return squares ? optim::StateFormat::kUnsigned8 : optim::StateFormat::kSigned8;
  }

  const JobSpec* spec_;
  std::vector<std::vector<std::vector<float>>> arrays_;  // by layer and array
  std::vector<uint64_t> first_elements_;                 // of the layers, in the job
  uint64_t elements_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Contribution>> pushed_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> applied_;
};

}  // namespace luwu
