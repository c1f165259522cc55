// The gradient range of a shard, cut where the treatment changes: pieces of trainable tensors are
// updated with their group's hyper-parameters; frozen tensors and the gaps between tensors keep
// their master. Computed once per job; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"

namespace luwu {

inline constexpr uint32_t kNoTensor = 0xffffffffu;

struct Segment {
  uint64_t first = 0;  // within the shard
  uint64_t count = 0;
  uint32_t tensor = kNoTensor;  // index within the layer; kNoTensor: a gap
  uint32_t group = 0;
  bool trainable = false;
};

// Cover the shard from its first to its last element, in order, none empty.
std::vector<Segment> SegmentsOf(const LayerSpec& layer, const LocalShard& shard);

}  // namespace luwu
