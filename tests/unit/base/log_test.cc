#include "common/base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace luwu {
namespace {

std::string Captured(LogLevel level, bool journald) {
  InitLog(level, journald);
  testing::internal::CaptureStderr();
  LogDebug("d_event", "a={}", 1);
  LogInfo("i_event", "b={}", 2);
  LogWarning("w_event", "c={}", 3);
  LogError("e_event", "d={} e={}", 4, "x");
  SetLogLevel(LogLevel::kOff);
  return testing::internal::GetCapturedStderr();
}

TEST(LogTest, JournaldLinesCarryTheirPriority) {
  EXPECT_EQ(Captured(LogLevel::kDebug, true),
            "<7>d_event a=1\n<6>i_event b=2\n<4>w_event c=3\n<3>e_event d=4 e=x\n");
}

TEST(LogTest, LowerLevelsAreLeftOut) {
  EXPECT_EQ(Captured(LogLevel::kWarning, true), "<4>w_event c=3\n<3>e_event d=4 e=x\n");
  EXPECT_EQ(Captured(LogLevel::kOff, true), "");
}

TEST(LogTest, PlainLinesEndWithEventAndFields) {
  const std::string text = Captured(LogLevel::kError, false);
  EXPECT_NE(text.find(" e_event d=4 e=x\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("w_event"), std::string::npos) << text;
}

TEST(LogTest, LevelsHaveNames) {
  LogLevel level = LogLevel::kOff;
  EXPECT_TRUE(ParseLogLevel("debug", &level));
  EXPECT_EQ(level, LogLevel::kDebug);
  EXPECT_TRUE(ParseLogLevel("warning", &level));
  EXPECT_EQ(level, LogLevel::kWarning);
  EXPECT_FALSE(ParseLogLevel("loud", &level));
  EXPECT_FALSE(ParseLogLevel("", &level));
  EXPECT_EQ(level, LogLevel::kWarning) << "untouched by a bad name";
}

}  // namespace
}  // namespace luwu
