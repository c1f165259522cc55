// The kernels' arithmetic against common/tensor, which is another implementation, and against sums
// in long double. tests/gpu compares the kernels with the twins.
#include "client/src/device/kernel_twins.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace luwu::client::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// All 16-bit values, or floats of all kinds.
std::vector<std::byte> SourceValues(DType dtype) {
  std::vector<std::byte> bytes;
  const auto append = [&](const auto& value) {
    const auto* const at = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), at, at + sizeof value);
  };
  if (dtype != DType::kFloat32) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) append(static_cast<uint16_t>(bits));
    return bytes;
  }
  // Around every value that the 16-bit types have, and at every exponent.
  for (uint32_t high = 0; high <= 0xffff; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      append((high << 16) | low);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) append(static_cast<uint32_t>(random()));
  for (uint32_t half = 0; half < 0x7c00; ++half) {  // the ties between neighbours of fp16
    const float here = Float16ToFloat(static_cast<uint16_t>(half));
    const float next = Float16ToFloat(static_cast<uint16_t>(half + 1));
    const float tie = std::isinf(next) ? 65520.0f : (here + next) / 2;
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e30f), -tie}) {
      append(value);
    }
  }
  return bytes;
}

TEST(KernelTwins, ConvertAsTheCpuDoes) {
  for (const DType source_dtype : kDTypes) {
    const std::vector<std::byte> source = SourceValues(source_dtype);
    const uint64_t count = source.size() / DTypeBytes(source_dtype);
    for (const DType target_dtype : kDTypes) {
      if (source_dtype == target_dtype) continue;
      SCOPED_TRACE(fmt::format("{} to {}", DTypeName(source_dtype), DTypeName(target_dtype)));
      const uint64_t bytes = count * DTypeBytes(target_dtype);
      std::vector<std::byte> expected(bytes);
      std::vector<std::byte> unpacked(bytes);
      std::vector<std::byte> packed(bytes);
      std::vector<Partial> partials(kBlocks);
      ConvertElements(source_dtype, source.data(), target_dtype, expected.data(), count);
      UnpackTwin({source_dtype, source.data(), target_dtype, unpacked.data(), count});
      PackTwin({source_dtype, source.data(), target_dtype, packed.data(), count}, 1.0f,
               partials.data());
      EXPECT_TRUE(unpacked == expected);
      EXPECT_TRUE(packed == expected);
    }
  }
}

TEST(KernelTwins, CountAndSumWhatTheyHaveWritten) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> value(-4.0f, 4.0f);
  for (const uint64_t count : {0ull, 1ull, 255ull, 16'384ull, 16'385ull, 100'003ull}) {
    std::vector<float> source(count);
    for (float& each : source) each = value(random);
    uint64_t wrong = 0;
    if (count > 2) {
      source[count / 2] = std::numeric_limits<float>::infinity();
      source[count - 1] = std::numeric_limits<float>::quiet_NaN();
      source[1] = 3e38f;  // finite, but not when it has been scaled
      wrong = 3;
    }
    std::vector<uint16_t> target(count);
    std::vector<Partial> partials(kBlocks);
    constexpr float kScale = 2.5f;
    PackTwin({DType::kFloat32, source.data(), DType::kBFloat16, target.data(), count}, kScale,
             partials.data());
    long double sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const float written = BFloat16ToFloat(target[i]);
      EXPECT_TRUE(std::isnan(source[i]) || target[i] == FloatToBFloat16(source[i] * kScale));
      if (std::isfinite(written)) sum += static_cast<long double>(written) * written;
    }
    const Partial total = Total(partials.data());
    EXPECT_EQ(total.non_finite, wrong);
    EXPECT_NEAR(total.square_sum, static_cast<double>(sum), static_cast<double>(sum) * 1e-12);
  }
}

TEST(KernelTwins, LaunchesAddUp) {
  const std::vector<float> source = {3.0f, 4.0f, std::numeric_limits<float>::infinity()};
  std::vector<float> target(source.size());
  std::vector<Partial> partials(kBlocks);
  for (int i = 0; i < 3; ++i) {
    PackTwin({DType::kFloat32, source.data(), DType::kFloat32, target.data(), source.size()}, 1.0f,
             partials.data());
  }
  EXPECT_EQ(Total(partials.data()).square_sum, 75.0);
  EXPECT_EQ(Total(partials.data()).non_finite, 3u);
}

}  // namespace
}  // namespace luwu::client::kernels
