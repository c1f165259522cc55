// Everything about the job's layout that a client computes once, at open, from spec and node list:
// which node owns each shard, where it lies there, and how a layer can be viewed. Immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "common/wire/shard_map.h"

namespace luwu::client {

struct ShardPlan {
  uint32_t node = 0;         // index into the node list
  uint32_t local_index = 0;  // in that node's ShardMap
  uint32_t shard = 0;        // within the layer
  ShardRange range;          // elements within the layer
};

// Shards of one layer that lie back to back in one node's weights region.
struct ViewRun {
  uint32_t node = 0;
  uint32_t local_index = 0;  // of the first shard
  ShardRange range;
};

struct LayerPlan {
  uint32_t layer = 0;
  bool trainable = false;
  uint64_t first_shard = 0;  // counted over all layers: index of the layer's first shard
  std::vector<ShardPlan> shards;
  std::vector<ViewRun> runs;
  // Per node that owns some: its shards of this layer, in order.
  struct NodeShards {
    uint32_t node = 0;
    std::vector<uint32_t> shards;
  };
  std::vector<NodeShards> by_node;
};

class ModelPlan {
 public:
  // All arguments have been validated.
  // `window_slots` by node, as the daemons say (common/wire/window.h); none: no windows.
  ModelPlan(JobSpec spec, std::vector<Node> nodes, const std::vector<uint32_t>& window_slots = {});

  const JobSpec& spec() const { return spec_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const ShardMap& map(uint32_t node) const { return maps_[node]; }
  const std::vector<LayerPlan>& layers() const { return layers_; }
  uint32_t lead() const { return lead_; }
  uint64_t shard_count() const { return shard_count_; }
  // Largest payload of a shard as it is served.
  uint64_t served_shard_bytes_max() const { return served_shard_bytes_max_; }

 private:
  LayerPlan PlanLayer(const Placement& placement, uint32_t layer);

  JobSpec spec_;
  std::vector<Node> nodes_;
  uint32_t lead_ = 0;
  uint64_t shard_count_ = 0;
  uint64_t served_shard_bytes_max_ = 0;
  std::vector<ShardMap> maps_;
  std::vector<LayerPlan> layers_;
};

}  // namespace luwu::client
