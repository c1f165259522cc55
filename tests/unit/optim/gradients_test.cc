// AccumulateGradient and FindNonFinite: conversion, order of the sum, folded prefixes.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/unit/optim/support.h"

namespace luwu::optim::testing {
namespace {

TEST(AccumulateGradient, EveryBFloat16AndFloat16ValueConvertsExactly) {
  constexpr uint64_t kAll = 65536;
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      GradientBuffer gradient(dtype, kAll);
      for (uint64_t i = 0; i < kAll; ++i) gradient.SetBits16(i, static_cast<uint16_t>(i));
      std::vector<float> sum(kAll);
      AccumulateGradient(gradient.source(), kAll, true, sum.data());
      for (uint64_t i = 0; i < kAll; ++i) {
        ASSERT_EQ(Bits(sum[i]), Bits(gradient.Get(i))) << std::hex << i;
      }
    }
  });
}

TEST(AccumulateGradient, AddsInPlaceForEveryLengthAndDType) {
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType dtype : kDTypes) {
      for (uint64_t count = 0; count <= 130; ++count) {
        Random random(count);
        GradientBuffer first(dtype, count, 1), second(dtype, count, 3);
        first.Fill(random);
        second.Fill(random);
        std::vector<float> sum(count + 1, 77.0f);
        AccumulateGradient(first.source(), count, true, sum.data());
        AccumulateGradient(second.source(), count, false, sum.data());
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(Bits(sum[i]), Bits(first.Get(i) + second.Get(i)));
        }
        ASSERT_EQ(sum[count], 77.0f) << "wrote beyond the range";
      }
    }
  });
}

// Folding any prefix ahead of the update must not change a bit of its result.
TEST(AccumulateGradient, FoldedPrefixEqualsTheFusedSum) {
  const Setting setting = AllSettings()[0];
  constexpr uint64_t kCount = 523;
  constexpr size_t kSources = 6;
  Random random(9);
  std::vector<GradientBuffer> gradients;
  for (size_t k = 0; k < kSources; ++k) {
    gradients.emplace_back(kDTypes[k % 3], kCount);
    gradients.back().Fill(random);
  }
  const std::vector<GradientSource> sources = SourcesOf(gradients);
  const State start(kCount, random);
  const auto apply = [&](std::span<const GradientSource> from) {
    State state = start;
    std::vector<float> served(kCount);
    UpdateRange range;
    range.count = kCount;
    range.gradients = from;
    range.gradient_scale = 1.0f / kSources;
    range.in = range.out = state.pointers();
    range.served = std::as_writable_bytes(std::span(served)).data();
    range.served_dtype = DType::kFloat32;
    EXPECT_EQ(ApplyUpdate(setting.optimizer, setting.hyper, 2, range).non_finite, kAllFinite);
    return state;
  };
  const State fused = apply(sources);
  for (size_t folded = 1; folded <= kSources; ++folded) {
    std::vector<float> sum(kCount);
    for (size_t k = 0; k < folded; ++k) {
      AccumulateGradient(sources[k], kCount, k == 0, sum.data());
    }
    std::vector<GradientSource> rest = {{std::as_bytes(std::span(sum)).data(), DType::kFloat32}};
    rest.insert(rest.end(), sources.begin() + static_cast<ptrdiff_t>(folded), sources.end());
    const State state = apply(rest);
    for (uint32_t k = 0; k < 3; ++k) {
      ASSERT_TRUE(SameBits(state.arrays[k], fused.arrays[k])) << folded << " sources folded";
    }
  }
}

// The order is part of the contract: another order gives other bits for these addends.
TEST(AccumulateGradient, SumsInTheOrderGiven) {
  GradientBuffer large(DType::kFloat32, 1), small(DType::kFloat32, 1), minus(DType::kFloat32, 1);
  large.Set(0, 1e8f);
  small.Set(0, 1.0f);
  minus.Set(0, -1e8f);
  float sum = 0;
  AccumulateGradient(large.source(), 1, true, &sum);
  AccumulateGradient(small.source(), 1, false, &sum);
  AccumulateGradient(minus.source(), 1, false, &sum);
  EXPECT_EQ(sum, 0.0f);
  AccumulateGradient(large.source(), 1, true, &sum);
  AccumulateGradient(minus.source(), 1, false, &sum);
  AccumulateGradient(small.source(), 1, false, &sum);
  EXPECT_EQ(sum, 1.0f);
}

TEST(FindNonFinite, NamesTheFirstAtEveryPosition) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType dtype : kDTypes) {
      constexpr uint64_t kCount = 150;
      for (uint64_t i = 0; i < kCount; ++i) {
        Random random(i);
        GradientBuffer gradient(dtype, kCount, 1);
        gradient.Fill(random);
        ASSERT_EQ(FindNonFinite(gradient.source(), kCount), kAllFinite);
        gradient.Set(i, i % 2 == 0 ? nan : -infinity);
        ASSERT_EQ(FindNonFinite(gradient.source(), kCount), i);
        ASSERT_EQ(FindNonFinite(gradient.source(), i), kAllFinite);
        if (i + 1 < kCount) gradient.Set(kCount - 1, infinity);
        ASSERT_EQ(FindNonFinite(gradient.source(), kCount), i);
      }
    }
  });
}

TEST(FindNonFinite, JudgesEvery16BitPatternLikeTheScalarConversion) {
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      GradientBuffer gradient(dtype, 1);
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        gradient.SetBits16(0, static_cast<uint16_t>(bits));
        const uint64_t expected = std::isfinite(gradient.Get(0)) ? kAllFinite : 0;
        ASSERT_EQ(FindNonFinite(gradient.source(), 1), expected) << std::hex << bits;
      }
    }
  });
}

TEST(KernelName, IsTheDispatchedTarget) {
  ForEachTarget([](const std::string& target) { EXPECT_EQ(KernelName(), target); });
}

}  // namespace
}  // namespace luwu::optim::testing
