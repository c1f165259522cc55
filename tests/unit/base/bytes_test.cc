#include "common/base/bytes.h"

#include <gtest/gtest.h>

namespace luwu {
namespace {

constexpr uint64_t kMax = ~uint64_t{0};

TEST(CheckedArithmeticTest, GivesTheExactResultOrNothing) {
  EXPECT_EQ(CheckedAdd(0, 0), 0u);
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax, kMax), std::nullopt);
  EXPECT_EQ(CheckedMul(0, kMax), 0u);
  EXPECT_EQ(CheckedMul(1, kMax), kMax);
  EXPECT_EQ(CheckedMul(2, kMax), std::nullopt);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 31), uint64_t{1} << 63);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
}

TEST(AlignUpTest, AtAndAroundTheAlignment) {
  for (const uint64_t alignment : {1, 2, 64, 4096}) {
    EXPECT_EQ(AlignUp(0, alignment), 0u);
    EXPECT_EQ(AlignUp(1, alignment), alignment);
    EXPECT_EQ(AlignUp(alignment, alignment), alignment);
    EXPECT_EQ(AlignUp(5 * alignment - (alignment > 1 ? 1 : 0), alignment), 5 * alignment);
    EXPECT_EQ(AlignUp(5 * alignment + 1, alignment), 6 * alignment);
  }
}

TEST(RangeFitsTest, NeverWraps) {
  EXPECT_TRUE(RangeFits(0, 0, 0));
  EXPECT_TRUE(RangeFits(10, 0, 10));
  EXPECT_FALSE(RangeFits(11, 0, 10));
  EXPECT_TRUE(RangeFits(3, 7, 10));
  EXPECT_FALSE(RangeFits(3, 8, 10));
  EXPECT_FALSE(RangeFits(kMax, 2, 10));
  EXPECT_FALSE(RangeFits(2, kMax, 10));
  EXPECT_FALSE(RangeFits(kMax, kMax, kMax));
  EXPECT_TRUE(RangeFits(0, kMax, kMax));
}

TEST(HumanBytesTest, PicksTheUnitAndKeepsTheExactNumber) {
  EXPECT_EQ(HumanBytes(0), "0 bytes");
  EXPECT_EQ(HumanBytes(1023), "1023 bytes");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB (1024 bytes)");
  EXPECT_EQ(HumanBytes(12897485), "12.3 MiB (12897485 bytes)");
  EXPECT_EQ(HumanBytes(5 * kGiB / 2), "2.50 GiB (2684354560 bytes)");
}

}  // namespace
}  // namespace luwu
