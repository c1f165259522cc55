// Which shards stay in memory, over many jobs and sizes of memory.
#include "server/store/residency_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "common/base/bytes.h"
#include "server/persist/generation.h"
#include "server/store/memory_store.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

JobSpec SpecOf(uint32_t layers, uint32_t frozen, bool undo) {
  std::vector<LayerSpec> table;
  for (uint32_t i = 0; i < layers; ++i) {
    table.push_back(fakes::Layer("l" + std::to_string(i), 3000, i >= frozen));
  }
  JobSpec spec = fakes::SmallSpec(1, std::move(table));
  spec.shard_elements = 1024;
  spec.keep_undo_state = undo;
  if (!undo) spec.on_non_finite = NonFinitePolicy::kFail;
  return spec;
}

ShardMap MapOf(const JobSpec& spec) {
  return ShardMap(spec, Placement(fakes::NodeList(1), spec), 0);
}

TEST(ResidencyPlan, WhatFitsStaysAndNothingIsStaged) {
  const JobSpec spec = SpecOf(4, 0, true);
  const ShardMap map = MapOf(spec);
  const auto plan = PlanResidency(spec, map, {.room_bytes = StateBytes(spec, map)});
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->spills());
  EXPECT_EQ(plan->resident_bytes, StateBytes(spec, map));
  EXPECT_EQ(plan->staging_bytes(), 0u);
}

TEST(ResidencyPlan, WithoutAStorageEverythingIsResidentWhateverTheRoom) {
  const JobSpec spec = SpecOf(4, 0, true);
  const auto plan = PlanResidency(spec, MapOf(spec), {.room_bytes = 10});
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->spills());
}

TEST(ResidencyPlan, LessThanTheLeastRoomIsRefused) {
  const JobSpec spec = SpecOf(20, 0, true);
  const ShardMap map = MapOf(spec);
  const uint64_t least = LeastRoomBytes(spec, map);
  EXPECT_FALSE(PlanResidency(spec, map, {.room_bytes = least - 1, .can_spill = true}));
  const auto plan = PlanResidency(spec, map, {.room_bytes = least, .can_spill = true});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->staging_bytes(), least);
  EXPECT_EQ(plan->resident_bytes, 0u);
}

TEST(ResidencyPlan, NeverTakesMoreThanTheRoomAndHardlyLess) {
  std::mt19937 random(5);
  for (uint32_t round = 0; round < 300; ++round) {
    const JobSpec spec = SpecOf(1 + random() % 40, random() % 3, random() % 2 == 0);
    const ShardMap map = MapOf(spec);
    const uint64_t room = random() % (2 * StateBytes(spec, map) + 1);
    const ResidencyLimits limits = {
        .room_bytes = room, .threads = 1 + uint32_t(random() % 8), .can_spill = true};
    const auto plan = PlanResidency(spec, map, limits);
    if (!plan) {
      EXPECT_LT(room, LeastRoomBytes(spec, map));
      continue;
    }
    ASSERT_EQ(plan->resident.size(), map.shard_count());
    EXPECT_LE(plan->resident_bytes + plan->staging_bytes(), room);
    EXPECT_EQ(plan->buffer_bytes % persist::kIoAlignment, 0u);
    if (!plan->spills()) continue;
    EXPECT_GE(plan->buffers, 3u);
    // One shard more, in each run of shards, would not fit.
    const uint64_t unused = room - plan->resident_bytes - plan->staging_bytes();
    uint64_t trainable_spilled = 0;
    for (uint32_t i = 0; i < map.shard_count(); ++i) {
      const bool trains = spec.layers[map.shards()[i].layer].trainable();
      EXPECT_FALSE(!trains && plan->resident[i]) << "frozen shards go first";
      trainable_spilled += trains && !plan->resident[i];
    }
    EXPECT_TRUE(trainable_spilled == 0 || unused < 2 * 24u * 1024) << unused;
    EXPECT_LE(plan->streamed_bytes, plan->spilled_bytes);
  }
}

TEST(ResidencyPlan, ResidentShardsAreSpreadOverTheModel) {
  const JobSpec spec = SpecOf(40, 0, false);
  const ShardMap map = MapOf(spec);
  const uint64_t room = StateBytes(spec, map) / 2;
  const auto plan = PlanResidency(spec, map, {.room_bytes = room, .can_spill = true});
  ASSERT_TRUE(plan);
  ASSERT_TRUE(plan->spills());
  uint32_t longest = 0;
  uint32_t run = 0;
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    run = plan->resident[i] ? 0 : run + 1;
    longest = std::max(longest, run);
  }
  EXPECT_LE(longest, 6u);
}

TEST(ResidencyPlan, DiskHasTwoGenerationsAndAThirdBetweenPoints) {
  JobSpec spec = SpecOf(20, 0, true);
  const ShardMap map = MapOf(spec);
  const uint64_t room = LeastRoomBytes(spec, map);
  const auto plan = PlanResidency(spec, map, {.room_bytes = room, .can_spill = true});
  EXPECT_EQ(StoredBytesMax(spec, map, *plan), 3 * plan->spilled_bytes);
  spec.durable_every = 1;
  EXPECT_EQ(StoredBytesMax(spec, map, *plan), 2 * plan->spilled_bytes);
  spec.durable_every = 10;
  EXPECT_EQ(StoredBytesMax(spec, map, *plan), 3 * plan->spilled_bytes);
}

}  // namespace
}  // namespace luwu
