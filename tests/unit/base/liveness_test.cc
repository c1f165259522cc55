#include "common/base/liveness.h"

#include <gtest/gtest.h>

namespace luwu {
namespace {

TEST(Liveness, NamesTheLoopsWhoseTurnLastsTooLong) {
  const TimePoint start = std::chrono::steady_clock::now();
  LiveLoop waits("waits");
  LiveLoop works("works");
  works.Begin();
  EXPECT_TRUE(StuckLoops(start, 5000).empty());
  EXPECT_EQ(StuckLoops(start + Milliseconds(40'500), 5000),
            std::vector<std::string>{"works for 40 s"});
  works.End();
  EXPECT_TRUE(StuckLoops(start + Milliseconds(40'500), 5000).empty());
  {
    LiveLoop gone("gone");
    gone.Begin();
    EXPECT_EQ(StuckLoops(start + Milliseconds(60'500), 5000).size(), 1u);
  }
  EXPECT_TRUE(StuckLoops(start + Milliseconds(60'500), 5000).empty());
}

}  // namespace
}  // namespace luwu
