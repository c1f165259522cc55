// The engine against the brute-force model, for many random schedules.
#include <gtest/gtest.h>

#include "tests/unit/optim/format_oracle.h"
#include "tests/unit/step/job_model.h"
#include "tests/unit/step/job_schedule.h"

namespace luwu {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kSchedules = 60;
#else
constexpr uint32_t kSchedules = 300;
#endif

TEST(JobSum, AnyScheduleGivesTheBitsOfTheModel) {
  for (uint32_t seed = 1; seed <= kSchedules; ++seed) {
    std::mt19937 random(seed);
    const JobSpec spec = RandomSpec(random);
    ASSERT_TRUE(ValidateJobSpec(spec).ok()) << ToString(ValidateJobSpec(spec));
    JobSchedule schedule(spec, {.seed = seed, .order_seed = seed});
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ASSERT_NO_FATAL_FAILURE(schedule.Run());
  }
}

// ... for whatever is stored and however: every optimizer, state precision and master format that a
// job may have, in every update mode.
TEST(JobSum, EveryOptimizerAndStateFormatGivesTheBitsOfTheModel) {
  uint32_t seed = 5000;
  uint64_t skipped = 0;
  uint32_t jobs = 0;
  for (const OptimizerSpec& optimizer : optim::testing::AllOptimizerSpecs()) {
    if (!ValidateOptimizerSpec(optimizer).ok()) continue;
    for (const UpdateMode mode :
         {UpdateMode::kImmediate, UpdateMode::kDeferred, UpdateMode::kSpeculative}) {
      std::mt19937 random(++seed);
      JobSpec spec = RandomSpec(random, mode);
      MakeShardsLong(random, &spec);
      spec.optimizer = optimizer;
      spec.optimizer.rounding_seed = random();
      if (optimizer.master_format == MasterFormat::kSplit) spec.served_dtype = DType::kBFloat16;
      SCOPED_TRACE(testing::Message() << optim::testing::NameOf(optimizer) << ", "
                                      << UpdateModeName(mode) << ", seed " << seed);
      ASSERT_TRUE(ValidateJobSpec(spec).ok()) << ToString(ValidateJobSpec(spec));
      JobSchedule schedule(spec, {.seed = seed, .order_seed = seed, .steps = 4});
      ASSERT_NO_FATAL_FAILURE(schedule.Run());
      skipped += schedule.skipped();
      ++jobs;
    }
  }
  EXPECT_EQ(jobs, 150u);
  EXPECT_GE(skipped, 30u);
}

TEST(JobSum, AJobSpreadOverTwoNumaNodesGivesTheBitsOfTheModel) {
  for (uint32_t seed = 6001; seed <= 6000 + kSchedules / 6; ++seed) {
    std::mt19937 random(seed);
    JobSpec spec = RandomSpec(random);
    RandomizeState(random, &spec);
    JobSchedule schedule(spec, {.seed = seed, .order_seed = seed, .two_numa_nodes = true});
    ASSERT_EQ(schedule.world().environment().pool->homes().homes(), 2u);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ASSERT_NO_FATAL_FAILURE(schedule.Run());
  }
}

// Workers that push the layers in opposite orders through two slots wait for each other for ever,
// unless early contributions are folded or moved out of the slots.
TEST(JobSum, WorkersThatPushInOppositeOrdersThroughTwoSlotsDoNotDeadlock) {
  for (uint32_t seed = 1; seed <= kSchedules / 4; ++seed) {
    std::mt19937 random(seed);
    JobSpec spec = RandomSpec(random);
    spec.world_size = 2;
    spec.slots_per_worker = 2;
    JobSchedule schedule(spec,
                         {.seed = seed, .order_seed = seed, .restarts = false, .shuffle = false});
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ASSERT_NO_FATAL_FAILURE(schedule.Run());
  }
}

// Without memory to make room, it is back-pressure, and the deadline says who waits for whom.
TEST(JobSum, WithoutOverflowMemoryOppositeOrdersEndInADeadlineThatNamesBoth) {
  JobSpec spec = fakes::SmallSpec(2, {fakes::Layer("a", 64), fakes::Layer("b", 64),
                                      fakes::Layer("c", 64), fakes::Layer("d", 64)});
  spec.slots_per_worker = 2;
  spec.overflow_bytes = 0;
  fakes::JobWorld world(spec);
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  const std::vector<float> gradient(64, 1.0f);
  const auto first = world.Join(0);
  const auto second = world.Join(1);
  ASSERT_TRUE(first->Begin(0, {fakes::AdamHyper()}).ok());
  ASSERT_TRUE(second->Begin(0, {fakes::AdamHyper()}).ok());
  for (uint32_t i = 0; i < 2; ++i) {
    first->Send({0, i, 0, 0, true, false, &gradient});
    second->Send({0, 3 - i, 0, 0, true, false, &gradient});
  }
  EXPECT_FALSE(first->FreeSlot());
  EXPECT_FALSE(second->FreeSlot());
  fakes::CommitWait wait;
  world.job().AwaitCommit(first->session_ptr(), 0, world.clock().Now(), wait.Callback());
  const Status status = wait.Wait().status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kDeadline);
  for (const char* words :
       {"rank 0 (host host0, pid 100) has 2 shards of 2 layers open ('c', 'd')",
        "rank 1 (host host1, pid 101) has 2 shards of 2 layers open ('a', 'b')"}) {
    EXPECT_NE(MessageOf(status).find(words), std::string::npos) << MessageOf(status);
  }
}

// Two sweeps over twelve layers, of which the first one closes none, through four slots.
JobSpec TwoSweeps(UpdateMode mode, DType held) {
  std::vector<LayerSpec> layers;
  for (uint32_t i = 0; i < 12; ++i) layers.push_back(fakes::Layer("l" + std::to_string(i), 64));
  JobSpec spec = fakes::SmallSpec(1, std::move(layers));
  spec.overflow_bytes = 0;
  spec.update_mode = mode;
  spec.held_dtype = held;
  return spec;
}

TEST(JobSum, AJobThatAccumulatesNeedsNoOverflowMemoryForItsMicroSteps) {
  const std::pair<UpdateMode, DType> cases[] = {{UpdateMode::kImmediate, DType::kFloat32},
                                                {UpdateMode::kDeferred, DType::kFloat32},
                                                {UpdateMode::kDeferred, DType::kBFloat16},
                                                {UpdateMode::kSpeculative, DType::kBFloat16}};
  for (const auto& [mode, held] : cases) {
    SCOPED_TRACE(UpdateModeName(mode));
    JobSpec spec = TwoSweeps(mode, held);
    spec.accumulates = true;
    fakes::JobWorld world(spec);
    JobModel model(spec);
    world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
    const auto worker = world.Join(0);
    std::vector<std::vector<float>> gradients;
    for (int i = 0; i < 24; ++i) gradients.emplace_back(64, 0.25f * float(i + 1));
    for (uint64_t step = 0; step < 2; ++step) {
      ASSERT_TRUE(worker->Begin(step, {fakes::AdamHyper()}).ok());
      for (uint32_t micro_step = 0; micro_step < 2; ++micro_step) {
        for (uint32_t layer = 0; layer < 12; ++layer) {
          const std::vector<float>* gradient = &gradients[12 * micro_step + layer];
          worker->Send({step, layer, 0, micro_step, micro_step == 1, false, gradient});
          model.Push(layer, 0, micro_step, 0, gradient);
        }
      }
      fakes::CommitWait wait;
      world.job().AwaitCommit(worker->session_ptr(), step, world.clock().AfterMs(60000),
                              wait.Callback());
      const StatusOr<CommitResult> result = wait.Wait();
      ASSERT_TRUE(result.ok()) << ToString(result.status());
      if (step == 0) {
        for (uint32_t layer = 0; layer < 12; ++layer) {
          std::fill(model.array(layer, 0).begin(), model.array(layer, 0).end(), 1.0f);
        }
      }
      model.EndStep({fakes::AdamHyper()});
    }
    for (uint32_t layer = 0; layer < 12; ++layer) {
      EXPECT_EQ(*world.ReadLayer(layer, Quantity::kMaster), model.array(layer, 0));
    }
  }
}

TEST(JobSum, AWorkerThatAccumulatesWithoutMemoryForItIsToldAtOnce) {
  for (const bool held : {false, true}) {
    JobSpec spec = TwoSweeps(held ? UpdateMode::kDeferred : UpdateMode::kImmediate,
                             held ? DType::kBFloat16 : DType::kFloat32);
    spec.overflow_bytes = 2 * 64 * sizeof(float);
    fakes::JobWorld world(spec);
    world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
    const auto worker = world.Join(0);
    ASSERT_TRUE(worker->Begin(0, {fakes::AdamHyper()}).ok());
    const std::vector<float> gradient(64, 1.0f);
    for (uint32_t layer = 0; layer < 6; ++layer) {  // four slots and two blocks
      EXPECT_EQ(worker->board().fault(), ErrorCode::kOk) << worker->board().fault_text();
      worker->Send({0, layer, 0, 0, false, false, &gradient});
    }
    EXPECT_TRUE(worker->board().WaitFor(
        [&] { return worker->board().fault() == ErrorCode::kResourceExhausted; }));
    EXPECT_NE(worker->board().fault_text().find("create the job with accumulates=1"),
              std::string::npos)
        << worker->board().fault_text();
  }
}

// A gradient that closes its shard never needs more than its slot.
TEST(JobSum, OneWorkerThatDoesNotAccumulateNeedsNoOverflowMemory) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 300), fakes::Layer("b", 64)});
  spec.overflow_bytes = 0;
  spec.slots_per_worker = 2;
  spec.groups = 2;
  JobSchedule schedule(spec, {.seed = 3, .steps = 5, .restarts = false, .one_push = true});
  ASSERT_NO_FATAL_FAILURE(schedule.Run());
}

}  // namespace
}  // namespace luwu
