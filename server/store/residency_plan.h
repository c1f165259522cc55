// Which shards' state stays in memory and which is on disk, when not everything fits. The access
// order is known and cyclic, so a fixed set is resident (an LRU cache would miss every time),
// spread evenly over the model so that disk and memory work at the same time. Frozen shards, which
// no update reads, go to disk first.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"

namespace luwu {

struct ResidencyPlan {
  std::vector<bool> resident;   // by local shard
  uint64_t resident_bytes = 0;  // of memory, all generations
  uint64_t spilled_bytes = 0;   // of one stored generation of the shards that are not resident
  uint64_t streamed_bytes = 0;  // ... of the trainable ones: read, and written, in each step
  uint32_t buffers = 0;         // for state that passes through
  uint32_t point_buffers = 0;   // for resident state that is being stored
  uint64_t buffer_bytes = 0;    // of each
  bool spills() const { return spilled_bytes > 0; }
  uint64_t staging_bytes() const { return (uint64_t{buffers} + point_buffers) * buffer_bytes; }
};

struct ResidencyLimits {
  uint64_t room_bytes = 0;  // for state and staging
  uint32_t threads = 1;     // that update
  bool can_spill = false;   // there is a storage, which also needs buffers for points
};

// Nothing when not even the fewest buffers have room. Without `can_spill` everything is resident,
// whether it has room or not. Nothing is resident of a job with a window on its served copies,
// which save more bytes in the same memory.
std::optional<ResidencyPlan> PlanResidency(const JobSpec& spec, const ShardMap& map,
                                           const ResidencyLimits& limits);
// The least room that a plan which spills needs.
uint64_t LeastRoomBytes(const JobSpec& spec, const ShardMap& map);

// The most that a job has on disk, checkpoints not counted: what is current, what is being written,
// and a point apart from both; and with a window the served copies of two versions.
uint64_t StoredBytesMax(const JobSpec& spec, const ShardMap& map, const ResidencyPlan& plan);

}  // namespace luwu
