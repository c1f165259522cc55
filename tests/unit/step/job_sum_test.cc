// The engine against the brute-force model, for many random schedules.
#include <gtest/gtest.h>

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
    JobSchedule schedule(spec, {.seed = seed});
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
    JobSchedule schedule(spec, {.seed = seed, .restarts = false, .shuffle = false});
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
