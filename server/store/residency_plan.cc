#include "server/store/residency_plan.h"

#include <algorithm>

#include "common/base/bytes.h"
#include "server/persist/generation.h"
#include "server/store/state_shape.h"

namespace luwu {
namespace {

constexpr uint32_t kBuffersMin = 3;       // one loaded, one in use, one stored
constexpr uint32_t kBuffersInFlight = 8;  // beside those that threads work on
constexpr uint32_t kPointBuffers = 2;
constexpr uint64_t kStagingShare = 4;  // staging takes at most a quarter of the room

uint64_t StoredBytes(const StateShape& shape) {
  return AlignUp(shape.stored_bytes(), persist::kIoAlignment);
}

bool IsTrainable(const JobSpec& spec, const LocalShard& shard) {
  return spec.layers[shard.layer].trainable();
}

uint64_t LargestBuffer(const JobSpec& spec, const ShardMap& map) {
  uint64_t bytes = 0;
  for (const LocalShard& shard : map.shards()) {
    bytes = std::max(bytes, StoredBytes(ShapeOf(spec, shard)));
  }
  return AlignUp(bytes, persist::kIoAlignment);
}

// Adds up; when `state_room` is given, leaves shards out so that the resident ones fit into it.
void Choose(const JobSpec& spec, const ShardMap& map, std::optional<uint64_t> state_room,
            ResidencyPlan* plan) {
  uint64_t total = 0;
  for (const LocalShard& shard : map.shards()) {
    const StateShape shape = ShapeOf(spec, shard);
    if (IsTrainable(spec, shard)) total += shape.generation_bytes * shape.generations;
  }
  uint64_t seen = 0;
  for (const LocalShard& shard : map.shards()) {
    const StateShape shape = ShapeOf(spec, shard);
    const uint64_t bytes = shape.generation_bytes * shape.generations;
    const bool trains = IsTrainable(spec, shard);
    bool stays = true;
    if (state_room) {
      // Stays when the share of what has been seen so far allows it.
      seen += trains ? bytes : 0;
      const auto share = static_cast<uint64_t>(double(*state_room) * double(seen) /
                                               double(std::max<uint64_t>(total, 1)));
      stays = trains && plan->resident_bytes + bytes <= std::min(share, *state_room);
    }
    plan->resident.push_back(stays);
    if (stays) {
      plan->resident_bytes += bytes;
    } else {
      plan->spilled_bytes += StoredBytes(shape);
      if (trains) plan->streamed_bytes += StoredBytes(shape);
    }
  }
}

}  // namespace

std::optional<ResidencyPlan> PlanResidency(const JobSpec& spec, const ShardMap& map,
                                           const ResidencyLimits& limits) {
  ResidencyPlan all;
  all.buffer_bytes = LargestBuffer(spec, map);
  all.point_buffers = limits.can_spill ? kPointBuffers : 0;
  Choose(spec, map, std::nullopt, &all);
  const bool fits = all.resident_bytes + all.staging_bytes() <= limits.room_bytes;
  if (!limits.can_spill || (fits && !map.has_window())) return all;
  if (LeastRoomBytes(spec, map) > limits.room_bytes) return std::nullopt;
  ResidencyPlan plan;
  plan.buffer_bytes = all.buffer_bytes;
  plan.point_buffers = all.point_buffers;
  const uint64_t wanted = limits.threads + kBuffersInFlight;
  const uint64_t affordable = limits.room_bytes / kStagingShare / plan.buffer_bytes;
  plan.buffers =
      static_cast<uint32_t>(std::max<uint64_t>(kBuffersMin, std::min(wanted, affordable)));
  const uint64_t room = limits.room_bytes - std::min(limits.room_bytes, plan.staging_bytes());
  Choose(spec, map, map.has_window() ? 0 : room, &plan);
  return plan;
}

uint64_t LeastRoomBytes(const JobSpec& spec, const ShardMap& map) {
  return (kBuffersMin + kPointBuffers) * LargestBuffer(spec, map);
}

uint64_t StoredBytesMax(const JobSpec& spec, const ShardMap& map, const ResidencyPlan& plan) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    const bool trains = IsTrainable(spec, map.shards()[i]);
    uint64_t copies = trains ? 2 : 1;
    if (plan.resident[i] && spec.durable_every == 0) copies = 0;
    // Without points of its own a job still keeps the one that a checkpoint has made.
    if (!plan.resident[i] && trains && spec.durable_every != 1) copies = 3;
    bytes += copies * StoredBytes(ShapeOf(spec, map.shards()[i]));
    if (!map.has_window()) continue;
    const uint64_t served = map.shards()[i].elements * DTypeBytes(spec.served_dtype);
    bytes += (trains ? 2 : 1) * AlignUp(served, persist::kIoAlignment);
  }
  return bytes;
}

}  // namespace luwu
