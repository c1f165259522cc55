// A shard's state as numbers: the same for a job's memory and for what was stored of it, so that an
// export of a checkpoint has the bits that a live read would have had. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/optim/optimizer.h"
#include "server/step/shard_segments.h"

namespace luwu {

// One array of a shard's state.
struct StateView {
  uint32_t index = 0;  // of the shard on its node
  uint32_t array = 0;
  optim::StateArrays state;
  std::byte* served = nullptr;  // of the version that the state belongs to; split masters only
};

// Whose state it is.
struct StateOwner {
  const JobSpec& spec;
  const LocalShard& shard;
  const std::vector<Segment>& segments;  // SegmentsOf the shard
};

// Elements [first, first + out.size()) of an array, in fp32.
void ReadStateValues(const StateOwner& owner, const StateView& view, uint64_t first,
                     std::span<float> out);

}  // namespace luwu
