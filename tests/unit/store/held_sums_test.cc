#include "server/store/held_sums.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

TEST(HeldSums, EachTrainableShardHasItsOwnBuffer) {
  JobSpec spec = fakes::SmallSpec(
      1, {fakes::Layer("a", 100), fakes::Layer("ice", 10, false), fakes::Layer("b", 7)});
  spec.update_mode = UpdateMode::kDeferred;
  spec.held_dtype = DType::kBFloat16;
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  EXPECT_EQ(HeldSums::BytesFor(spec, map, SumsUse::kHeld), 128u + 128 + 64);
  const StatusOr<HeldSums> held = HeldSums::Create(spec, map, SumsUse::kHeld);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(held->data(1) - held->data(0), 128);
  EXPECT_EQ(held->data(2), nullptr) << "frozen";
  EXPECT_EQ(held->data(3) - held->data(1), 128);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(held->data(0)) % 64, 0u);
}

TEST(HeldSums, RunningSumsAreKeptWhereHeldOnesCannotServe) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 100), fakes::Layer("ice", 10, false)});
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  EXPECT_EQ(HeldSums::BytesFor(spec, map, SumsUse::kRunning), 0u);
  spec.accumulates = true;
  EXPECT_EQ(HeldSums::BytesFor(spec, map, SumsUse::kRunning), 256u + 192);
  spec.update_mode = UpdateMode::kDeferred;
  EXPECT_EQ(HeldSums::BytesFor(spec, map, SumsUse::kRunning), 0u);
  spec.held_dtype = DType::kBFloat16;
  EXPECT_EQ(HeldSums::BytesFor(spec, map, SumsUse::kRunning), 256u + 192);
}

TEST(HeldSums, AJobThatUpdatesAtOnceHoldsNone) {
  const JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 100)});
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  EXPECT_EQ(HeldSums::BytesFor(spec, map, SumsUse::kHeld), 0u);
  const StatusOr<HeldSums> held = HeldSums::Create(spec, map, SumsUse::kHeld);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(held->data(0), nullptr);
}

}  // namespace
}  // namespace luwu
