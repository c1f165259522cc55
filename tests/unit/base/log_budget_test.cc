// Lines that are let through at times of the test's own.
#include "common/base/log_budget.h"

#include <gtest/gtest.h>

namespace luwu {
namespace {

TEST(LogBudget, ABurstThenSoManyASecondAndTheRestIsCounted) {
  LogBudget budget(3, 2);
  const TimePoint start = TimePoint() + std::chrono::hours(1);
  uint64_t left_out = 99;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(budget.Take(start, &left_out));
    EXPECT_EQ(left_out, 0U);
  }
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(budget.Take(start, &left_out));
  EXPECT_FALSE(budget.Take(start + Milliseconds(250), &left_out)) << "half a line has come back";
  EXPECT_TRUE(budget.Take(start + Milliseconds(500), &left_out));
  EXPECT_EQ(left_out, 8U);
  EXPECT_FALSE(budget.Take(start + Milliseconds(500), &left_out));
}

TEST(LogBudget, NeverGrowsBeyondTheBurst) {
  LogBudget budget(3, 2);
  const TimePoint start = TimePoint() + std::chrono::hours(1);
  uint64_t left_out = 0;
  EXPECT_TRUE(budget.Take(start, &left_out));
  int taken = 0;
  while (budget.Take(start + std::chrono::hours(5), &left_out)) ++taken;
  EXPECT_EQ(taken, 3);
}

}  // namespace
}  // namespace luwu
