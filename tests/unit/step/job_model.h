// The step rule by brute force: keeps every contribution of a step, sorts them by (micro-step,
// rank), adds them up in fp32 one by one, and applies the optimizer tensor by tensor with the
// finished sum. Knows nothing of slots, segments, blocks, folding or sessions.
#pragma once

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "common/tensor/dtype.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "server/optim/optimizer.h"

namespace luwu {

class JobModel {
 public:
  explicit JobModel(const JobSpec& spec) : spec_(spec) {
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

  void EndStep(const std::vector<HyperParameters>& groups) {
    for (auto& [key, contributions] : pushed_) Update(key.first, key.second, contributions, groups);
    pushed_.clear();
  }

 private:
  using Contribution = std::tuple<uint32_t, uint32_t, const std::vector<float>*>;

  float Quantized(float value) const {
    float out = 0;
    std::byte wire[4];
    const auto* in = reinterpret_cast<const std::byte*>(&value);
    ConvertElements(DType::kFloat32, in, spec_.gradient_dtype, wire, 1);
    ConvertElements(spec_.gradient_dtype, wire, DType::kFloat32, reinterpret_cast<std::byte*>(&out),
                    1);
    return out;
  }

  void Update(uint32_t layer, uint32_t shard, std::vector<Contribution>& contributions,
              const std::vector<HyperParameters>& groups) {
    std::sort(contributions.begin(), contributions.end());
    const ShardRange range =
        RangeOfShard(spec_.layers[layer].elements, spec_.shard_elements, shard);
    const uint64_t applied = applied_[{layer, shard}]++;
    for (const TensorSpec& tensor : spec_.layers[layer].tensors) {
      const uint64_t begin = std::max(tensor.offset, range.first);
      const uint64_t end =
          std::min(tensor.offset + *TensorElements(tensor), range.first + range.elements);
      if (!tensor.trainable || begin >= end) continue;
      std::vector<float> sum(end - begin);
      for (uint64_t i = begin; i < end; ++i) {
        float acc = 0;
        bool first = true;
        for (const auto& [micro_step, rank, values] : contributions) {
          acc = first ? Quantized((*values)[i]) : acc + Quantized((*values)[i]);
          first = false;
        }
        sum[i - begin] = acc;
      }
      const optim::GradientSource source{reinterpret_cast<const std::byte*>(sum.data()),
                                         DType::kFloat32};
      std::vector<float> served(sum.size());
      optim::UpdateRange update;
      update.count = sum.size();
      update.gradients = {&source, 1};
      update.gradient_scale =
          spec_.reduction == Reduction::kMean ? 1.0f / float(spec_.world_size) : 1.0f;
      for (uint32_t a = 0; a < optim::StateArrayCount(spec_.optimizer); ++a) {
        update.in[a] = update.out[a] = arrays_[layer][a].data() + begin;
      }
      update.served = reinterpret_cast<std::byte*>(served.data());
      update.served_dtype = DType::kFloat32;
      optim::ApplyUpdate(spec_.optimizer, groups[tensor.group], applied, update);
    }
  }

  const JobSpec& spec_;
  std::vector<std::vector<std::vector<float>>> arrays_;  // by layer and array
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Contribution>> pushed_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> applied_;
};

}  // namespace luwu
