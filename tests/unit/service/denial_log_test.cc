#include "server/service/denial_log.h"

#include <string>

#include <gtest/gtest.h>

#include "common/base/log.h"

namespace luwu {
namespace {

TEST(DenialLogTest, AFloodIsCutAndCounted) {
  DenialLog log;
  const TimePoint begin = std::chrono::steady_clock::now();
  uint64_t left_out = 0;
  for (uint32_t i = 0; i < DenialLog::kBurst; ++i) EXPECT_TRUE(log.Enter(begin, &left_out));
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(log.Enter(begin, &left_out));
  EXPECT_EQ(left_out, 0u);
  EXPECT_TRUE(log.Enter(begin + Milliseconds(150), &left_out));
  EXPECT_EQ(left_out, 7u);
  EXPECT_FALSE(log.Enter(begin + Milliseconds(150), &left_out));
  // However long it was quiet, no more than a burst.
  uint64_t lines = 0;
  while (log.Enter(begin + Milliseconds(100'000'000), &left_out)) ++lines;
  EXPECT_EQ(lines, DenialLog::kBurst);
}

TEST(DenialLogTest, WhatCallersSendCannotForgeALine) {
  std::string seen;
  SetLogLevel(LogLevel::kWarning);
  SetLogSink([](LogLevel, const char* line, void* out) { *static_cast<std::string*>(out) = line; },
             &seen);
  DenialLog log;
  log.Add({.identity = "x\" job=\"y", .method = "/a\nb", .job = "j\\", .why = "w\x7f"});
  SetLogSink(nullptr, nullptr);
  SetLogLevel(LogLevel::kOff);
  EXPECT_EQ(seen, "access_denied identity=\"x? job=?y\" rpc=\"/a?b\" job=\"j?\" why=\"w?\"");
}

}  // namespace
}  // namespace luwu
