#include "server/store/memory_budget.h"

#include <utility>

#include <gtest/gtest.h>

#include "common/base/bytes.h"

namespace luwu {
namespace {

TEST(MemoryBudget, GivesBackWhatAReservationHeld) {
  MemoryBudget budget(1000);
  {
    StatusOr<MemoryReservation> first = budget.Reserve(600, "a");
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(budget.used(), 600u);
    MemoryReservation moved = *std::move(first);
    EXPECT_EQ(budget.used(), 600u);
    ASSERT_TRUE(budget.Reserve(400, "b").ok()) << "exactly what is left";
    EXPECT_EQ(budget.used(), 600u) << "a reservation that nobody kept is given back";
    moved = MemoryReservation();
    EXPECT_EQ(budget.used(), 0u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(MemoryBudget, RefusesWithTheNumbersThatHelp) {
  MemoryBudget budget(10 * kKiB);
  const auto held = budget.Reserve(4 * kKiB, "first");
  const Status status = budget.Reserve(7 * kKiB, "job 'x'").status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kResourceExhausted);
  EXPECT_EQ(
      MessageOf(status),
      "job 'x' needs 7.0 KiB (7168 bytes), but only 6.0 KiB (6144 bytes) of the memory budget "
      "of 10.0 KiB (10240 bytes) are free; a budget of 11.0 KiB (11264 bytes) would do");
  EXPECT_EQ(budget.used(), 4 * kKiB);
}

TEST(MemoryBudget, AnAbsurdRequestDoesNotWrapAround) {
  MemoryBudget budget(1000);
  const auto held = budget.Reserve(10, "first");
  EXPECT_FALSE(budget.Reserve(~uint64_t{0}, "absurd").ok());
  EXPECT_EQ(budget.used(), 10u);
}

}  // namespace
}  // namespace luwu
