#include "common/tensor/dtype.h"

#include <gtest/gtest.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace luwu {
namespace {

// ---- oracles, in plain double arithmetic ------------------------------------------------------

// The value of a binary format with `mantissa_bits` of mantissa and the exponent bias of `bias`.
double ValueOf(uint32_t bits, int mantissa_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> (mantissa_bits + exponent_bits)) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign *
         std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
}

struct SmallFormat {
  const char* name;
  int mantissa_bits;
  int exponent_bits;
  DType dtype;
  uint16_t (*narrow)(float);
  float (*widen)(uint16_t);
  uint16_t infinity;
};
const SmallFormat kBFloat16Format = {"bfloat16",      7,     8, DType::kBFloat16, FloatToBFloat16,
                                     BFloat16ToFloat, 0x7f80};
const SmallFormat kFloat16Format = {"float16",      10,    5, DType::kFloat16, FloatToFloat16,
                                    Float16ToFloat, 0x7c00};

class SmallFloatTest : public testing::TestWithParam<SmallFormat> {};

TEST_P(SmallFloatTest, WidensEveryValueExactly) {
  const SmallFormat& format = GetParam();
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const double expected = ValueOf(bits, format.mantissa_bits, format.exponent_bits);
    const float value = format.widen(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

TEST_P(SmallFloatTest, NarrowingWhatWasWidenedGivesTheSameBits) {
  const SmallFormat& format = GetParam();
  const uint16_t quiet_bit = static_cast<uint16_t>(1 << (format.mantissa_bits - 1));
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const bool is_nan = (bits & 0x7fff) > format.infinity;
    const uint16_t expected = static_cast<uint16_t>(is_nan ? bits | quiet_bit : bits);
    ASSERT_EQ(format.narrow(format.widen(static_cast<uint16_t>(bits))), expected) << bits;
  }
}

// Between two neighbours the halfway point goes to the even one, and one float less or more goes
// to the nearer. Covers every rounding interval, the one before infinity included.
TEST_P(SmallFloatTest, RoundsToNearestEvenInEveryInterval) {
  const SmallFormat& format = GetParam();
  for (uint16_t low = 0; low < format.infinity; ++low) {
    const uint16_t high = low + 1;
    const double below = ValueOf(low, format.mantissa_bits, format.exponent_bits);
    const double step = low == 0
                            ? ValueOf(1, format.mantissa_bits, format.exponent_bits)
                            : below - ValueOf(low - 1, format.mantissa_bits, format.exponent_bits);
    const double above = high == format.infinity
                             ? below + step
                             : ValueOf(high, format.mantissa_bits, format.exponent_bits);
    const float middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << low;
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
      const float factor = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(format.narrow(factor * middle), even | sign) << low;
      ASSERT_EQ(format.narrow(factor * std::nextafter(middle, 0.0f)), low | sign) << low;
      ASSERT_EQ(format.narrow(factor * std::nextafter(middle, HUGE_VALF)), high | sign) << low;
    }
  }
}

TEST_P(SmallFloatTest, KeepsInfinityAndNaN) {
  const SmallFormat& format = GetParam();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(format.narrow(infinity), format.infinity);
  EXPECT_EQ(format.narrow(-infinity), format.infinity | 0x8000);
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), format.infinity);
  // A signalling NaN whose payload lies in the bits that are cut off must not become infinity.
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu}) {
    const uint16_t narrow = format.narrow(std::bit_cast<float>(bits));
    EXPECT_GT(narrow & 0x7fff, format.infinity) << bits;
    EXPECT_NE(narrow & (1 << (format.mantissa_bits - 1)), 0) << "quiet " << bits;
    EXPECT_EQ(narrow >> 15, bits >> 31) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SmallFloatTest, testing::Values(kBFloat16Format, kFloat16Format),
                         [](const auto& info) { return info.param.name; });

// ---- the vectorised loops, on every instruction set of this CPU --------------------------------

class ConvertElementsTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { Choose(GetParam()); }
  void TearDown() override { Choose(0); }

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

std::vector<std::byte> EveryHalf() {
  std::vector<std::byte> out(2 * 65536);
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    std::memcpy(&out[2 * bits], &half, 2);
  }
  return out;
}

// Random bit patterns, and the neighbourhood of every 16-bit value of both formats.
std::vector<std::byte> ManyFloats() {
  std::vector<uint32_t> words;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    for (const float value : {BFloat16ToFloat(half), Float16ToFloat(half)}) {
      for (const int32_t nudge : {-1, 0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001}) {
        words.push_back(std::bit_cast<uint32_t>(value) + static_cast<uint32_t>(nudge));
      }
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) words.push_back(static_cast<uint32_t>(random()));
  std::vector<std::byte> out(4 * words.size());
  std::memcpy(out.data(), words.data(), out.size());
  return out;
}

template <typename T>
T At(const std::vector<std::byte>& bytes, uint64_t index) {
  T out;
  std::memcpy(&out, &bytes[index * sizeof out], sizeof out);
  return out;
}

float ScalarWiden(DType dtype, const std::vector<std::byte>& bytes, uint64_t index) {
  if (dtype == DType::kFloat32) return At<float>(bytes, index);
  const auto half = At<uint16_t>(bytes, index);
  return dtype == DType::kBFloat16 ? BFloat16ToFloat(half) : Float16ToFloat(half);
}

uint32_t ScalarNarrow(DType dtype, float value) {
  if (dtype == DType::kFloat32) return std::bit_cast<uint32_t>(value);
  return dtype == DType::kBFloat16 ? FloatToBFloat16(value) : FloatToFloat16(value);
}

TEST_P(ConvertElementsTest, GivesTheBitsOfTheScalarFunctions) {
  const DType kAll[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  const std::vector<std::byte> halves = EveryHalf();
  const std::vector<std::byte> floats = ManyFloats();
  for (const DType from : kAll) {
    const std::vector<std::byte>& source = from == DType::kFloat32 ? floats : halves;
    const uint64_t count = source.size() / DTypeBytes(from);
    for (const DType to : kAll) {
      if (from == to) continue;
      std::vector<std::byte> target(count * DTypeBytes(to));
      ConvertElements(from, source.data(), to, target.data(), count);
      for (uint64_t i = 0; i < count; ++i) {
        const uint32_t expected = ScalarNarrow(to, ScalarWiden(from, source, i));
        const uint32_t got =
            to == DType::kFloat32 ? At<uint32_t>(target, i) : At<uint16_t>(target, i);
        ASSERT_EQ(got, expected) << DTypeName(from) << " to " << DTypeName(to) << " element " << i;
      }
    }
  }
}

TEST_P(ConvertElementsTest, WritesExactlyCountElementsAtAnyAlignment) {
  const std::vector<std::byte> halves = EveryHalf();
  for (uint64_t count = 0; count <= 70; ++count) {
    for (const uint64_t shift : {0, 1, 2, 3}) {
      std::vector<std::byte> source(4 * 80);
      std::vector<std::byte> target(4 * 80, std::byte{0xa5});
      std::memcpy(source.data() + shift, halves.data() + 2 * 0x3f00, 2 * count);
      ConvertElements(DType::kBFloat16, source.data() + shift, DType::kFloat32,
                      target.data() + shift, count);
      for (uint64_t i = 0; i < count; ++i) {
        float value;
        std::memcpy(&value, target.data() + shift + 4 * i, 4);
        ASSERT_EQ(value, BFloat16ToFloat(static_cast<uint16_t>(0x3f00 + i))) << count;
      }
      for (uint64_t i = 0; i < shift; ++i) ASSERT_EQ(target[i], std::byte{0xa5});
      for (uint64_t i = shift + 4 * count; i < target.size(); ++i) {
        ASSERT_EQ(target[i], std::byte{0xa5}) << count << " byte " << i;
      }
    }
  }
}

#ifdef __SSE2__
// A trainer may have switched its threads to take subnormals for zero (torch.set_flush_denormal).
TEST_P(ConvertElementsTest, SubnormalsSurviveAThreadThatFlushesThem) {
  const std::vector<std::byte> halves = EveryHalf();
  for (const DType from : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<std::byte> usual(4 * 65536);
    ConvertElements(from, halves.data(), DType::kFloat32, usual.data(), 65536);
    std::vector<std::byte> flushing(4 * 65536);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // flush results, take operands for zero
    ConvertElements(from, halves.data(), DType::kFloat32, flushing.data(), 65536);
    _mm_setcsr(before);
    EXPECT_EQ(flushing, usual) << DTypeName(from);
  }
}
#endif

std::vector<int64_t> TargetsHere() {
  std::vector<int64_t> out;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    if ((target & HWY_TARGETS) != 0) out.push_back(target);  // compiled and available
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Targets, ConvertElementsTest, testing::ValuesIn(TargetsHere()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST(DTypeTest, EqualTypesAreCopiedAndInPlaceIsANoOp) {
  const std::vector<std::byte> halves = EveryHalf();
  std::vector<std::byte> copy(halves.size());
  ConvertElements(DType::kFloat16, halves.data(), DType::kFloat16, copy.data(), 65536);
  EXPECT_EQ(copy, halves);  // signalling NaNs included: a copy is not a conversion
  ConvertElements(DType::kFloat16, copy.data(), DType::kFloat16, copy.data(), 65536);
  EXPECT_EQ(copy, halves);
  ConvertElements(DType::kFloat32, nullptr, DType::kFloat32, nullptr, 0);
}

TEST(DTypeTest, NamesAndSizes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("fp8"), std::nullopt);
  EXPECT_EQ(ParseDType("unspecified"), std::nullopt);
  EXPECT_EQ(DTypeBytes(DType::kFloat32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kBFloat16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kFloat16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kUnspecified), 0u);
  EXPECT_FALSE(IsSupported(DType::kFloat64));
  EXPECT_FALSE(IsSupported(DType::kUnspecified));
  EXPECT_FALSE(IsSupported(static_cast<DType>(9)));
}

TEST(DTypeDeathTest, RefusesToConvertAnUnsupportedType) {
  std::byte bytes[8] = {};
  EXPECT_DEATH(ConvertElements(DType::kFloat64, bytes, DType::kFloat32, bytes, 1), "invariant");
}

}  // namespace
}  // namespace luwu
