#include "common/config/quantity.h"

#include <gtest/gtest.h>

#include "common/base/bytes.h"

namespace luwu {
namespace {

TEST(ParseBytesTest, ReadsNumbersWithUnits) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"4096B", 4096},
      {"64KiB", 64 * kKiB},
      {"512 MiB", 512 * kMiB},
      {"4GiB", 4 * kGiB},
      {"2 TiB", 2 * 1024 * kGiB},
      {"1.5GiB", kGiB + kGiB / 2},
      {"0.25 KiB", 256},
      {"1.0", 1},
      {"18446744073709551615", ~uint64_t{0}},
      {"16777215 TiB", uint64_t{16777215} << 40},
  };
  for (const auto& [text, bytes] : cases) {
    const StatusOr<uint64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << ToString(parsed.status());
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytesTest, RefusesEverythingElse) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1",
                           "+1",
                           "1e3",
                           "0x10",
                           "1KB",
                           "1GB",
                           "1kib",
                           "1 GiB x",
                           "1..5GiB",
                           "1.GiB",
                           ".5GiB",
                           "1.5",
                           "0.3KiB",
                           "1.0000000001GiB",
                           "18446744073709551616",
                           "16777216TiB",
                           "16777215.99999999TiB5",
                           " 1",
                           "1 ",
                           "1,5GiB"}) {
    EXPECT_EQ(CodeOf(ParseBytes(text).status()), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(ParseDurationTest, ReadsNumbersWithUnits) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"250", 250},     {"250ms", 250},  {"15s", 15000},     {"15 s", 15000}, {"0.5s", 500},
      {"2min", 120000}, {"1h", 3600000}, {"1.5 min", 90000}, {"0.001s", 1},   {"24h", 86400000},
  };
  for (const auto& [text, duration_ms] : cases) {
    const StatusOr<uint64_t> parsed = ParseDurationMs(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << ToString(parsed.status());
    EXPECT_EQ(*parsed, duration_ms) << text;
  }
}

TEST(ParseDurationTest, RefusesEverythingElse) {
  for (const char* text : {"", "s", "-1s", "1m", "1sec", "1d", "0.5", "0.5ms", "0.0001s",
                           "5124095577h5", "18446744073709551615s"}) {
    EXPECT_EQ(CodeOf(ParseDurationMs(text).status()), ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace luwu
