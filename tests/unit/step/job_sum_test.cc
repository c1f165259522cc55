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
