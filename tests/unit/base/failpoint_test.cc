#include "common/base/failpoint.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace luwu {
namespace {

class Failpoint : public testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(failpoint::Configure("").ok()); }
};

TEST_F(Failpoint, DoesNothingAndCountsNothingWhileOff) {
  EXPECT_EQ(LUWU_FAILPOINT("a"), 0);
  EXPECT_TRUE(failpoint::Counts().empty());
}

TEST_F(Failpoint, ReportsTheErrorAtEachHitOrAtOne) {
  ASSERT_TRUE(failpoint::Configure("a=error(ENOSPC);b=error(5)@2;c=off").ok());
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(LUWU_FAILPOINT("a"), ENOSPC);
    EXPECT_EQ(LUWU_FAILPOINT("b"), i == 2 ? EIO : 0);
    EXPECT_EQ(LUWU_FAILPOINT("c"), 0);
  }
  EXPECT_EQ(LUWU_FAILPOINT("unnamed"), 0);
  EXPECT_EQ(failpoint::Counts().at("b"), 3u);
  EXPECT_EQ(failpoint::Counts().at("unnamed"), 1u);
}

TEST_F(Failpoint, KillsTheProcessWithoutCleaningUp) {
  const auto reach_it_twice = [] {
    if (!failpoint::Configure("a=kill@2").ok()) std::exit(1);
    LUWU_FAILPOINT("a");
    LUWU_FAILPOINT("a");
    std::exit(2);
  };
  EXPECT_EXIT(reach_it_twice(), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(Failpoint, WritesEachReachedNameOnceIntoTheLog) {
  const std::string path = testing::TempDir() + "/failpoint_log";
  std::remove(path.c_str());
  ::setenv("LUWU_FAILPOINT_LOG", path.c_str(), 1);
  ASSERT_TRUE(failpoint::Configure("").ok());
  for (const char* name : {"x", "y", "x"}) LUWU_FAILPOINT(name);
  ::unsetenv("LUWU_FAILPOINT_LOG");
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text, "x\ny\n");
}

TEST_F(Failpoint, RefusesWhatItCannotRead) {
  for (const char* text : {"a", "=kill", "a=explode", "a=error", "a=error(EWHAT)", "a=delay(x)",
                           "a=kill@0", "a=kill@x", "a=error(EIO", "a=kill(1)"}) {
    EXPECT_EQ(CodeOf(failpoint::Configure(text)), ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace luwu
