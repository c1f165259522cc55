// The histogram against counts by hand.
#include "server/step/step_times.h"

#include <numeric>

#include <gtest/gtest.h>

namespace luwu {
namespace {

TEST(StepTimes, ABoundBelongsToTheBucketBelowIt) {
  StepTimes times;
  for (const double seconds : {0.0, 0.01, 0.0100001, 1200.0, 1200.5, 1e9}) times.Note(seconds);
  EXPECT_EQ(times.counts().front(), 2u);
  EXPECT_EQ(times.counts()[1], 1u);
  EXPECT_EQ(times.counts()[StepTimes::kBounds.size() - 1], 1u);
  EXPECT_EQ(times.counts().back(), 2u);
  EXPECT_EQ(std::accumulate(times.counts().begin(), times.counts().end(), uint64_t{0}), 6u);
}

TEST(StepTimes, AddsUpTheSeconds) {
  StepTimes times;
  EXPECT_EQ(times.sum_seconds(), 0);
  times.Note(0.25);
  times.Note(2.5);
  EXPECT_EQ(times.sum_seconds(), 2.75);
}

}  // namespace
}  // namespace luwu
