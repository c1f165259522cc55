// Immediate, deferred and speculative updates against each other and the brute-force model, in all
// optimizers and formats; and many workers in little memory.
#include <cstring>

#include <gtest/gtest.h>

#include "tests/unit/step/job_schedule.h"

namespace luwu {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kSeeds = 12;
#else
constexpr uint32_t kSeeds = 60;
#endif

struct Played {
  std::vector<float> state;
  uint64_t updates = 0;
  uint64_t skipped = 0;
  uint64_t clipped = 0;
};

// The same gradients whatever the mode, in another order of arrival.
Played Play(JobSpec spec, UpdateMode mode, const ScheduleOptions& options) {
  spec.update_mode = mode;
  spec.keep_undo_state = mode != UpdateMode::kDeferred;
  EXPECT_TRUE(ValidateJobSpec(spec).ok()) << ToString(ValidateJobSpec(spec));
  JobSchedule schedule(spec, options);
  schedule.Run();
  Played played;
  played.state = schedule.State();
  const JobSnapshot snapshot = schedule.world().job().Snapshot();
  played.updates = snapshot.updates;
  played.skipped = snapshot.skipped_steps;
  played.clipped = snapshot.clipped_steps;
  EXPECT_EQ(played.skipped, schedule.skipped());
  return played;
}

void ExpectEqualBits(const Played& a, const Played& b) {
  ASSERT_EQ(a.state.size(), b.state.size());
  EXPECT_EQ(std::memcmp(a.state.data(), b.state.data(), a.state.size() * sizeof(float)), 0);
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.clipped, b.clipped);
}

// A random job that every mode can play.
JobSpec SpecOf(uint32_t seed) {
  std::mt19937 random(seed);
  JobSpec spec = RandomSpec(random);
  RandomizeState(random, &spec);
  spec.on_non_finite = NonFinitePolicy::kSkip;
  return spec;
}

TEST(JobModes, WithoutClippingAllModesGiveEqualBits) {
  uint64_t skipped = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    JobSpec spec = SpecOf(seed);
    spec.clip_scope = ClipScope::kNone;
    spec.held_dtype = DType::kFloat32;
    spec.loss_scaling = {};
    ScheduleOptions options = {.seed = seed, .order_seed = 1, .steps = 4};
    const Played immediate = Play(spec, UpdateMode::kImmediate, options);
    options.order_seed = 2;
    const Played deferred = Play(spec, UpdateMode::kDeferred, options);
    options.order_seed = 3;
    const Played speculative = Play(spec, UpdateMode::kSpeculative, options);
    ExpectEqualBits(immediate, deferred);
    ExpectEqualBits(immediate, speculative);
    skipped += immediate.skipped;
  }
  EXPECT_GE(skipped, kSeeds / 8);
}

TEST(JobModes, DeferredAndSpeculativeGiveEqualBitsHoweverTheyClip) {
  uint64_t clipped = 0;
  uint64_t skipped = 0;
  uint64_t redone = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const JobSpec spec = SpecOf(1000 + seed);
    ScheduleOptions options = {.seed = seed, .order_seed = 1, .steps = 4};
    const Played deferred = Play(spec, UpdateMode::kDeferred, options);
    options.order_seed = 2;
    const Played speculative = Play(spec, UpdateMode::kSpeculative, options);
    ExpectEqualBits(deferred, speculative);
    clipped += deferred.clipped;
    skipped += deferred.skipped;
    redone += speculative.updates > deferred.updates;
  }
  EXPECT_GE(clipped, kSeeds / 8);
  EXPECT_GE(skipped, kSeeds / 8);
  EXPECT_GE(redone, kSeeds / 8);
}

// One layer for each shard and a clip unit for each layer: the decision can be made to differ from
// what was assumed for any one of them.
TEST(JobModes, AViolationAtEachShardIsRedoneThereAndOnlyThere) {
  constexpr uint32_t kShards = 6;
  std::vector<LayerSpec> layers;
  for (uint32_t i = 0; i < kShards; ++i)
    layers.push_back(fakes::Layer("l" + std::to_string(i), 50));
  for (const StatePrecision precision :
       {StatePrecision::kFloat32, StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
    for (uint32_t violated = 0; violated < kShards; ++violated) {
      SCOPED_TRACE(testing::Message() << "shard " << violated);
      JobSpec spec = fakes::SmallSpec(2, layers);
      spec.optimizer.state_precision = precision;
      spec.clip_scope = ClipScope::kLayer;
      ScheduleOptions options = {
          .seed = violated + 1, .steps = 3, .one_push = true, .non_finite = false};
      options.change_decision = [violated](uint64_t step, StepDecision* decision) {
        decision->factors.assign(kShards, 1.0);
        if (step == 1) decision->factors[violated] = 0.37;
      };
      const Played deferred = Play(spec, UpdateMode::kDeferred, options);
      const Played speculative = Play(spec, UpdateMode::kSpeculative, options);
      ExpectEqualBits(deferred, speculative);
      EXPECT_EQ(deferred.updates, 3 * kShards);
      EXPECT_EQ(speculative.updates, 3 * kShards + 1);
      options.change_decision = [](uint64_t, StepDecision*) {};
      const Played unclipped = Play(spec, UpdateMode::kDeferred, options);
      EXPECT_NE(std::memcmp(unclipped.state.data(), deferred.state.data(),
                            deferred.state.size() * sizeof(float)),
                0);
    }
  }
}

// Workers far ahead of one that has sent nothing wait in their slots, with hardly any memory beside
// them, and the bits are those of the model.
TEST(JobModes, AStragglerAmong64WorkersStopsTheOthersAndChangesNoBit) {
  for (const UpdateMode mode :
       {UpdateMode::kImmediate, UpdateMode::kDeferred, UpdateMode::kSpeculative}) {
    for (const uint32_t straggler : {0u, 31u, 63u}) {
      SCOPED_TRACE(testing::Message() << UpdateModeName(mode) << " rank " << straggler);
      JobSpec spec = fakes::SmallSpec(
          64, {fakes::Layer("a", 150), fakes::Layer("b", 64), fakes::Layer("c", 90)});
      spec.gradient_dtype = DType::kBFloat16;
      spec.update_mode = mode;
      spec.slots_per_worker = 2;
      spec.overflow_bytes = 3 * 64 * 4;
      spec.groups = 2;
      JobSchedule schedule(spec, {.seed = 5,
                                  .order_seed = straggler + 1,
                                  .steps = 2,
                                  .restarts = false,
                                  .shuffle = false,
                                  .same_order = true,
                                  .one_push = true,
                                  .straggler = straggler});
      ASSERT_NO_FATAL_FAILURE(schedule.Run());
      EXPECT_EQ(schedule.world().budget().used(),
                schedule.world().job().Snapshot().footprint.total());
    }
  }
}

TEST(JobModes, ManyWorkersInAnyOrderGiveTheBitsOfTheModel) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    std::mt19937 random(seed);
    JobSpec spec = RandomSpec(random);
    spec.world_size = 64;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    JobSchedule schedule(spec, {.seed = seed, .order_seed = seed, .steps = 2});
    ASSERT_NO_FATAL_FAILURE(schedule.Run());
  }
}

}  // namespace
}  // namespace luwu
