#include "client/src/model_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace luwu::client {

ModelPlan::ModelPlan(JobSpec spec, std::vector<Node> nodes,
                     const std::vector<uint32_t>& window_slots)
    : spec_(std::move(spec)), nodes_(std::move(nodes)) {
  const Placement placement(nodes_, spec_);
  lead_ = placement.lead();
  maps_.reserve(nodes_.size());
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    maps_.emplace_back(spec_, placement, node, window_slots.empty() ? 0 : window_slots[node]);
  }
  layers_.reserve(spec_.layers.size());
  for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    layers_.push_back(PlanLayer(placement, layer));
  }
}

LayerPlan ModelPlan::PlanLayer(const Placement& placement, uint32_t layer) {
  const LayerSpec& spec = spec_.layers[layer];
  LayerPlan plan;
  plan.layer = layer;
  plan.trainable = spec.trainable();
  plan.first_shard = shard_count_;
  const uint64_t count = ShardCount(spec.elements, spec_.shard_elements);
  std::vector<int64_t> place_of_node(nodes_.size(), -1);
  for (uint32_t shard = 0; shard < count; ++shard) {
    const uint32_t node = placement.NodeOf(layer, shard);
    const std::optional<uint32_t> local_index = maps_[node].IndexOf(layer, shard);
    LUWU_CHECK(local_index.has_value(), "placement and shard map disagree");
    const ShardRange range = RangeOfShard(spec.elements, spec_.shard_elements, shard);
    plan.shards.push_back({node, *local_index, shard, range});
    if (place_of_node[node] < 0) {
      place_of_node[node] = static_cast<int64_t>(plan.by_node.size());
      plan.by_node.push_back({node, {}});
    }
    plan.by_node[place_of_node[node]].shards.push_back(shard);
    served_shard_bytes_max_ =
        std::max(served_shard_bytes_max_, range.elements * DTypeBytes(spec_.served_dtype));
    if (!plan.runs.empty() && plan.runs.back().node == node) {
      plan.runs.back().range.elements += range.elements;
    } else {
      plan.runs.push_back({node, *local_index, range});
    }
  }
  shard_count_ += count;
  return plan;
}

}  // namespace luwu::client
