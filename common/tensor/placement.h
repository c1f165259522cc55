// Which node owns which shard: a pure function of the node list and the job spec.
//
// Shard k of layer i lies on node pattern[(offset_i + k) mod pattern length]. The pattern repeats
// every node `weight` times in smooth weighted round-robin order (nginx's algorithm: each turn adds
// the weights to the counters, takes the largest, subtracts the total); offset_i is the number of
// shards of all layers before i, so that small layers rotate over the nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"

namespace luwu {

inline constexpr uint32_t kNodesMax = 1024;
inline constexpr uint32_t kNodeWeightMax = 1000;

// One daemon of the static node list.
struct Node {
  std::string name;
  uint32_t weight = 1;          // 0: serves no shards
  std::string control_address;  // gRPC, "host:port"
  std::string data_address;     // tcp data plane, "host:port"
  std::string shm_path;         // Unix socket of the shm data plane; empty: none
  bool operator==(const Node&) const = default;
};

Status ValidateNodes(const std::vector<Node>& nodes);

// Fingerprint of names, weights and addresses in order; peers with another list are refused.
uint64_t FingerprintOf(const std::vector<Node>& nodes);

// Shards of a layer: ceil(elements / shard_elements); shard k covers [first, first + elements).
uint64_t ShardCount(uint64_t layer_elements, uint64_t shard_elements);
struct ShardRange {
  uint64_t first = 0;
  uint64_t elements = 0;
};
// `shard` < ShardCount (CHECKed). Only the last shard is shorter than shard_elements.
ShardRange RangeOfShard(uint64_t layer_elements, uint64_t shard_elements, uint64_t shard);

class Placement {
 public:
  // Precondition: both arguments passed their Validate function; some weight is positive.
  Placement(const std::vector<Node>& nodes, const JobSpec& spec);

  uint32_t NodeOf(uint32_t layer, uint64_t shard) const {
    return pattern_[(offsets_[layer] + shard) % pattern_.size()];
  }
  uint32_t node_count() const { return node_count_; }
  // The node that coordinates commits: the first with a positive weight.
  uint32_t lead() const { return lead_; }

 private:
  uint32_t node_count_ = 0;
  uint32_t lead_ = 0;
  std::vector<uint32_t> pattern_;
  std::vector<uint64_t> offsets_;  // per layer
};

}  // namespace luwu
