// The mean over the last steps, by hand.
#include "server/step/step_pace.h"

#include <gtest/gtest.h>

namespace luwu {
namespace {

TimePoint At(int64_t seconds) { return TimePoint() + std::chrono::seconds(1000 + seconds); }

TEST(StepPace, NothingIsKnownBeforeTheSecondStep) {
  StepPace pace;
  EXPECT_EQ(pace.steps(), 0u);
  EXPECT_EQ(pace.mean_seconds(), 0);
  pace.Note(At(0));
  EXPECT_EQ(pace.steps(), 0u);
  EXPECT_EQ(pace.mean_seconds(), 0);
}

TEST(StepPace, IsTheMeanOfAllNotTheLast) {
  StepPace pace;
  for (const int64_t at : {0, 10, 12, 15}) pace.Note(At(at));
  EXPECT_EQ(pace.steps(), 3u);
  EXPECT_DOUBLE_EQ(pace.mean_seconds(), 5);  // the last took 3
}

TEST(StepPace, ForgetsWhatIsLongAgo) {
  StepPace pace;
  pace.Note(At(0));
  for (int64_t step = 1; step <= 64; ++step) pace.Note(At(1000 + 2 * step));
  EXPECT_EQ(pace.steps(), 64u);
  EXPECT_DOUBLE_EQ(pace.mean_seconds(), (1000.0 + 128) / 64);
  pace.Note(At(1000 + 2 * 65));  // the first one falls out
  EXPECT_EQ(pace.steps(), 64u);
  EXPECT_DOUBLE_EQ(pace.mean_seconds(), 2);
}

}  // namespace
}  // namespace luwu
