#include "server/step/memory_plan.h"

#include <algorithm>
#include <utility>

#include "common/wire/window.h"
#include "server/step/job_parts.h"
#include "server/step/job_shard.h"
#include "server/store/memory_store.h"
#include "server/store/served_weights.h"
#include "server/store/served_window.h"

namespace luwu {
namespace {

// One being read, one being loaded and some being stored; fewer would take turns too often.
constexpr uint32_t kWindowSlotsLeast = 8;

// Copies of the spec that a daemon keeps of a job: the registry's, the job's, and the one of the
// caller that brought it.
constexpr uint64_t kSpecCopies = 3;

// Tables of what each shard knows of each rank, and of names.
uint64_t TableBytes(const JobSpec& spec, const ShardMap& map) {
  const uint64_t shard = sizeof(JobShard) + sizeof(UnitSum) +
                         ShardProgress::BytesFor(spec.world_size) +
                         spec.world_size * (sizeof(Contribution) + sizeof(ShardSource));
  return map.shard_count() * shard + kSpecCopies * SpecBytes(spec) +
         ServedWindow::TableBytesFor(map);
}

bool CanHaveWindow(const JobSpec& spec) {
  return spec.optimizer.master_format != MasterFormat::kSplit;
}

uint32_t SlotsLeast(const ShardMap& full) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(2 * full.shard_count(), 1, kWindowSlotsLeast));
}

std::optional<MemoryPlan> Fit(const JobSpec& spec, ShardMap map, const MemoryRoom& room) {
  JobFootprint footprint = FootprintOf(spec, map);
  const uint64_t others = footprint.total() - footprint.state_bytes;
  if (room.can_spill && others > room.bytes) return std::nullopt;
  std::optional<ResidencyPlan> residency =
      PlanResidency(spec, map,
                    {.room_bytes = room.bytes - std::min(room.bytes, others),
                     .threads = room.threads,
                     .can_spill = room.can_spill});
  if (!residency) return std::nullopt;
  footprint.state_bytes = residency->resident_bytes;
  footprint.staging_bytes = residency->staging_bytes();
  return MemoryPlan{std::move(map), footprint, *std::move(residency)};
}

}  // namespace

JobFootprint FootprintOf(const JobSpec& spec, const ShardMap& map) {
  JobFootprint footprint;
  footprint.state_bytes = StateBytes(spec, map);
  footprint.served_bytes = ServedWeights::BytesFor(map);
  footprint.inbox_bytes = map.inbox_bytes() * spec.world_size;
  footprint.overflow_bytes = OverflowPool::BytesFor(spec, map);
  footprint.held_bytes = HeldSums::BytesFor(spec, map, SumsUse::kHeld) +
                         HeldSums::BytesFor(spec, map, SumsUse::kRunning);
  footprint.table_bytes = TableBytes(spec, map);
  return footprint;
}

std::optional<MemoryPlan> PlanMemory(const JobSpec& spec, const Placement& placement, uint32_t self,
                                     const MemoryRoom& room) {
  ShardMap full(spec, placement, self);
  const uint32_t least = SlotsLeast(full);
  const uint64_t slots_max = std::min<uint64_t>(2 * full.shard_count(), kWindowSlotsMax - 1);
  if (auto plan = Fit(spec, std::move(full), room)) return plan;
  if (!room.can_spill || !CanHaveWindow(spec)) return std::nullopt;
  // With the smallest window first: what is left beside its staging buffers goes to slots, too.
  std::optional<MemoryPlan> plan = Fit(spec, ShardMap(spec, placement, self, least), room);
  if (!plan) return std::nullopt;
  const uint64_t slot_bytes =
      plan->map.window_payload_offset(1) - plan->map.window_payload_offset(0);
  const uint64_t spare = (room.bytes - plan->footprint.total()) / (slot_bytes + 4096);
  const uint64_t slots = std::min(least + spare, slots_max);
  return Fit(spec, ShardMap(spec, placement, self, static_cast<uint32_t>(slots)), room);
}

MemoryPlan LeastMemoryPlan(const JobSpec& spec, const Placement& placement, uint32_t self,
                           bool can_spill) {
  ShardMap map(spec, placement, self);
  if (can_spill && CanHaveWindow(spec)) map = ShardMap(spec, placement, self, SlotsLeast(map));
  JobFootprint footprint = FootprintOf(spec, map);
  if (can_spill) {
    footprint.state_bytes = 0;
    footprint.staging_bytes = LeastRoomBytes(spec, map);
  }
  return {std::move(map), footprint, {}};
}

}  // namespace luwu
