// QuotientOfRoot against division: every mantissa of the dividend, for many divisors.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/optim/quotient_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/quotient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

// How many of the floats with bits first, first + 1, ... have another quotient than division gives.
uint64_t CountMismatches(uint32_t first, uint32_t count, float divisor) {
  const F32 d;
  const U32 du;
  const V32 by = hn::Set(d, divisor), inverse = hn::Set(d, 1 / divisor);
  uint64_t mismatches = 0;
  for (uint32_t i = 0; i < count; i += static_cast<uint32_t>(hn::Lanes(d))) {
    const V32 value = hn::BitCast(d, hn::Iota(du, first + i));
    const auto same = hn::Eq(hn::BitCast(du, QuotientOfRoot(value, by, inverse)),
                             hn::BitCast(du, hn::Div(value, by)));
    if (HWY_UNLIKELY(!hn::AllTrue(du, same))) mismatches += hn::Lanes(d) - hn::CountTrue(du, same);
  }
  return mismatches;
}

float Quotient(float value, float divisor) {
  const F32 d;
  return hn::GetLane(
      QuotientOfRoot(hn::Set(d, value), hn::Set(d, divisor), hn::Set(d, 1 / divisor)));
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "tests/unit/optim/support.h"

namespace luwu::optim {

HWY_EXPORT(CountMismatches);
HWY_EXPORT(Quotient);

namespace testing {
namespace {

std::vector<float> Divisors() {
  std::vector<float> divisors;
  for (const double beta : {0.9, 0.95, 0.99, 0.999, 0.9999}) {
    for (const int step : {1, 2, 3, 10, 100, 1000}) {
      divisors.push_back(static_cast<float>(std::sqrt(1 - std::pow(beta, step))));
    }
  }
  for (const uint32_t mantissa : {0u, 1u, 2u, 0x7FFFFFu, 0x7FFFFEu, 0x400000u, 0x400001u, 0x3FFFFFu,
                                  0x3504F3u, 0x3504F4u, 0x555555u, 0x2AAAABu, 0x7FFFE0u}) {
    divisors.push_back(std::bit_cast<float>(0x3F000000u | mantissa));
    divisors.push_back(std::bit_cast<float>(0x30800000u | mantissa));  // from 2^-30
  }
  std::mt19937 random(1);
  while (divisors.size() < 100) {
    divisors.push_back(
        std::bit_cast<float>(static_cast<uint32_t>(0x30800000u + random() % 0x0F000000u)));
  }
  return divisors;
}

TEST(QuotientOfRoot, IsTheQuotientForEveryMantissa) {
  ForEachTarget([&](const std::string& target) {
    for (const float divisor : Divisors()) {
      const uint64_t wrong = HWY_DYNAMIC_DISPATCH(CountMismatches)(0x3F800000u, 1u << 24, divisor);
      ASSERT_EQ(wrong, 0u) << target << " divisor " << divisor;
    }
  });
}

TEST(QuotientOfRoot, IsTheQuotientInTheWholeRangeOfRoots) {
  ForEachTarget([&](const std::string& target) {
    for (const float divisor : Divisors()) {
      for (uint32_t exponent = 127 - 75; exponent <= 127 + 64; ++exponent) {
        for (const uint32_t mantissa : {0u, 0x123400u, 0x7FFC00u}) {
          const uint32_t first = exponent << 23 | mantissa;
          ASSERT_EQ(HWY_DYNAMIC_DISPATCH(CountMismatches)(first, 1024, divisor), 0u)
              << target << " divisor " << divisor << " exponent " << exponent;
        }
      }
    }
  });
}

TEST(QuotientOfRoot, KeepsZeroInfinityAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  ForEachTarget([&](const std::string& target) {
    for (const float divisor : Divisors()) {
      ASSERT_EQ(Bits(HWY_DYNAMIC_DISPATCH(Quotient)(0.0f, divisor)), 0u) << target;
      ASSERT_EQ(HWY_DYNAMIC_DISPATCH(Quotient)(infinity, divisor), infinity) << target;
      ASSERT_TRUE(std::isnan(HWY_DYNAMIC_DISPATCH(Quotient)(std::nanf(""), divisor))) << target;
    }
  });
}

}  // namespace
}  // namespace testing
}  // namespace luwu::optim
#endif  // HWY_ONCE
