// Which node owns which shard: a pure function of the node list and the job spec.
//
// Shard k of layer i lies on node pattern[(offset_i + k) mod pattern length]. The pattern repeats
// every node `weight` times in smooth weighted round-robin order (nginx's algorithm: each turn adds
// the weights to the counters, takes the largest, subtracts the total). Layers choose their offset
// one after the other, so that the elements on each node stay in proportion to its weight: the
// offset with the least sum, over the layer's shards, of (elements of the shard) times (elements
// per weight that its node has from the layers before); of equal ones, the first from where the
// layer before ended. Trainable and frozen layers are counted apart, since only the former have
// state and gradients. All in integers, so that every machine finds the same.
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

// Of the rules by which shards are placed and laid out. Whoever derives another layout from the
// same spec and nodes must not talk to us, so it is part of the nodes' fingerprint.
inline constexpr uint32_t kLayoutRevision = 1;

// Fingerprint of names, weights and addresses in order; peers with another one are refused.
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
