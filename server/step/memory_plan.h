// How a job's part on one node is divided between memory and disk. In this order: everything in
// memory; state that does not fit on disk (server/store/residency_plan.h); all state on disk, and
// served copies too, with a window on them (common/wire/window.h) in the memory that is left.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "common/wire/shard_map.h"
#include "server/step/job_values.h"
#include "server/store/residency_plan.h"

namespace luwu {

// Of a job all of whose state is in memory.
JobFootprint FootprintOf(const JobSpec& spec, const ShardMap& map);

struct MemoryPlan {
  ShardMap map;
  JobFootprint footprint;
  ResidencyPlan residency;
};

struct MemoryRoom {
  uint64_t bytes = 0;
  uint32_t threads = 1;  // that update
  bool can_spill = false;
};

// Nothing when it does not fit. Without `can_spill` everything is in memory, whether it fits or
// not.
std::optional<MemoryPlan> PlanMemory(const JobSpec& spec, const Placement& placement, uint32_t self,
                                     const MemoryRoom& room);
// With the least that PlanMemory would take, for a message that says so.
MemoryPlan LeastMemoryPlan(const JobSpec& spec, const Placement& placement, uint32_t self,
                           bool can_spill);

}  // namespace luwu
