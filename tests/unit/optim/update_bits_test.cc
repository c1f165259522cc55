// Bits of ApplyUpdate against a scalar oracle: every length, dtype, source count and SIMD target.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/unit/optim/support.h"

namespace luwu::optim::testing {
namespace {

struct Case {
  const Setting& setting;
  uint64_t count = 0;
  std::vector<DType> gradient_dtypes;
  DType served_dtype = DType::kFloat32;
  uint64_t applied = 5;
  float scale = 1;
  bool in_place = false;
  uint64_t skew = 0;        // elements off alignment, of gradients
  uint64_t state_skew = 0;  // of state arrays
};

float ValueAt(const StateArrays& arrays, uint32_t array, uint64_t i) {
  float value = 0;
  std::memcpy(&value, arrays.data[array] + 4 * i, sizeof(value));
  return value;
}

// Runs the case and compares every output bit with the oracle; guards behind outputs stay intact.
void ExpectOracleBits(const Case& c, const std::string& what) {
  SCOPED_TRACE(what + " " + c.setting.name + " count " + std::to_string(c.count));
  Random random(c.count * 31 + c.gradient_dtypes.size());
  std::vector<GradientBuffer> gradients;
  for (const DType dtype : c.gradient_dtypes) {
    gradients.emplace_back(dtype, c.count, c.skew);
    gradients.back().Fill(random);
  }
  constexpr float kGuard = 12345.5f;
  State in(c.count + c.state_skew, random);
  if (c.setting.optimizer.kind == OptimizerKind::kAdagrad) in.MakeSecondPositive();
  const State before = in;
  State out;
  for (auto& array : out.arrays) array.assign(c.count + c.state_skew + 1, kGuard);
  std::vector<float> served(c.count + 2, kGuard);

  const std::vector<GradientSource> sources = SourcesOf(gradients);
  UpdateRange range;
  range.count = c.count;
  range.gradients = sources;
  range.gradient_scale = c.scale;
  range.in = in.pointers(c.state_skew);
  range.out = c.in_place ? in.pointers(c.state_skew) : out.pointers(c.state_skew);
  range.served = std::as_writable_bytes(std::span(served)).data();
  range.served_dtype = c.served_dtype;
  const UpdateOutcome outcome = ApplyUpdate(c.setting.optimizer, c.setting.hyper, c.applied, range);
  ASSERT_EQ(outcome.non_finite, kAllFinite);

  const uint32_t states = LayoutOf(c.setting.optimizer).count;
  const uint64_t served_bytes = DTypeBytes(c.served_dtype);
  for (uint64_t i = 0; i < c.count; ++i) {
    float expected[kStateArraysMax];
    for (uint32_t k = 0; k < states; ++k) expected[k] = before.arrays[k][c.state_skew + i];
    ScalarUpdate(c.setting, c.applied, ScalarSum(gradients, i, c.scale), expected);
    for (uint32_t k = 0; k < states; ++k) {
      ASSERT_EQ(Bits(ValueAt(range.out, k, i)), Bits(expected[k]))
          << "element " << i << " state " << k;
    }
    uint32_t got = 0;
    std::memcpy(&got, range.served + i * served_bytes, served_bytes);
    ASSERT_EQ(got, ServedBits(c.served_dtype, expected[0])) << "served element " << i;
  }
  if (c.count * served_bytes % 4 == 0) {
    float behind = 0;
    std::memcpy(&behind, range.served + c.count * served_bytes, 4);
    ASSERT_EQ(behind, kGuard) << "wrote beyond the served copy";
  }
  if (!c.in_place) {
    for (uint32_t k = 0; k < states; ++k) {
      ASSERT_EQ(out.arrays[k].back(), kGuard) << "wrote beyond the state";
      ASSERT_EQ(in.arrays[k], before.arrays[k]) << "input changed";
    }
  }
}

TEST(UpdateBits, EveryLengthOnEveryTarget) {
  const std::vector<Setting> settings = AllSettings();
  ForEachTarget([&](const std::string& target) {
    for (const Setting& setting : settings) {
      for (uint64_t count = 0; count <= 130; ++count) {
        for (const bool in_place : {false, true}) {
          ExpectOracleBits({.setting = setting,
                            .count = count,
                            .gradient_dtypes = {DType::kBFloat16},
                            .served_dtype = DType::kBFloat16,
                            .in_place = in_place},
                           target);
        }
      }
      for (const uint64_t count : {255, 1000, 4097, 16384, 20011}) {
        ExpectOracleBits({.setting = setting,
                          .count = count,
                          .gradient_dtypes = {DType::kBFloat16, DType::kFloat16},
                          .served_dtype = DType::kFloat16,
                          .scale = 0.5f},
                         target);
      }
    }
  });
}

TEST(UpdateBits, EveryDTypePairAndSourceCount) {
  const std::vector<Setting> settings = AllSettings();
  ForEachTarget([&](const std::string& target) {
    for (const DType gradient : kDTypes) {
      for (const DType served : kDTypes) {
        for (size_t sources = 1; sources <= 8; ++sources) {
          ExpectOracleBits({.setting = settings[0],
                            .count = 331,
                            .gradient_dtypes = std::vector<DType>(sources, gradient),
                            .served_dtype = served,
                            .scale = 1.0f / static_cast<float>(sources)},
                           target);
        }
      }
    }
    // A folded prefix arrives as fp32 before 16-bit slots.
    ExpectOracleBits(
        {.setting = settings[6],
         .count = 777,
         .gradient_dtypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kBFloat16},
         .scale = 1.0f / 3},
        target);
  });
}

TEST(UpdateBits, AppliedCountSelectsBiasCorrectionAndFirstMomentum) {
  const std::vector<Setting> settings = AllSettings();
  for (const Setting& setting : settings) {
    for (const uint64_t applied : {0, 1, 2, 10, 999, 100000}) {
      ExpectOracleBits({.setting = setting,
                        .count = 100,
                        .gradient_dtypes = {DType::kFloat32},
                        .applied = applied},
                       "applied " + std::to_string(applied));
    }
  }
}

TEST(UpdateBits, AnyElementAlignment) {
  const std::vector<Setting> settings = AllSettings();
  ForEachTarget([&](const std::string& target) {
    for (const DType dtype : kDTypes) {
      for (uint64_t skew = 0; skew < 9; ++skew) {
        ExpectOracleBits({.setting = settings[0],
                          .count = 203,
                          .gradient_dtypes = {dtype, dtype},
                          .served_dtype = dtype,
                          .skew = skew,
                          .state_skew = skew},
                         target);
      }
    }
  });
}

// Split at any place, a range gives the bits of the whole: callers may cut blocks as they like.
TEST(UpdateBits, SplitRangesEqualTheWhole) {
  const Setting setting = AllSettings()[0];
  constexpr uint64_t kCount = 1000;
  for (const uint64_t cut : {1, 63, 64, 65, 500, 999}) {
    Random random(cut);
    GradientBuffer gradient(DType::kBFloat16, kCount);
    gradient.Fill(random);
    State whole(kCount, random);
    State split = whole;
    std::vector<float> served(kCount);
    const auto apply = [&](State& state, uint64_t begin, uint64_t count) {
      const GradientSource source{gradient.source().data + begin * 2, DType::kBFloat16};
      UpdateRange range;
      range.count = count;
      range.gradients = std::span(&source, 1);
      range.first = begin;
      range.in = range.out = state.pointers();
      range.served = std::as_writable_bytes(std::span(served)).data();
      range.served_dtype = DType::kBFloat16;
      ASSERT_EQ(ApplyUpdate(setting.optimizer, setting.hyper, 3, range).non_finite, kAllFinite);
    };
    apply(whole, 0, kCount);
    apply(split, 0, cut);
    apply(split, cut, kCount - cut);
    for (uint32_t k = 0; k < 3; ++k) {
      ASSERT_TRUE(SameBits(whole.arrays[k], split.arrays[k]));
    }
  }
}

TEST(UpdateBits, NegativeZeroOfASingleSourceSurvives) {
  Setting setting = AllSettings()[4];  // momentum: the first buffer is the gradient itself
  setting.hyper.weight_decay = 0;
  GradientBuffer gradient(DType::kBFloat16, 70);
  for (uint64_t i = 0; i < 70; ++i) gradient.Set(i, -0.0f);
  const GradientSource source = gradient.source();
  Random random(1);
  State state(70, random);
  std::vector<float> served(70);
  UpdateRange range;
  range.count = 70;
  range.gradients = std::span(&source, 1);
  range.in = range.out = state.pointers();
  range.served = std::as_writable_bytes(std::span(served)).data();
  range.served_dtype = DType::kFloat32;
  ASSERT_EQ(ApplyUpdate(setting.optimizer, setting.hyper, 0, range).non_finite, kAllFinite);
  for (const float value : state.arrays[1]) EXPECT_TRUE(std::signbit(value) && value == 0);
}

// A weight that is NaN already must not become a number in the served copy.
TEST(UpdateBits, NaNWeightsAreServedAsNaN) {
  const Setting setting = AllSettings()[2];
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u, 0xFF80FFFFu}) {
      GradientBuffer gradient(DType::kFloat32, 40);
      const GradientSource source = gradient.source();
      Random random(1);
      State state(40, random);
      std::fill(state.arrays[0].begin(), state.arrays[0].end(), std::bit_cast<float>(bits));
      for (const DType dtype : kDTypes) {
        GradientBuffer served(dtype, 40);
        UpdateRange range;
        range.count = 40;
        range.gradients = std::span(&source, 1);
        range.in = range.out = state.pointers();
        range.served = const_cast<std::byte*>(served.source().data);
        range.served_dtype = dtype;
        ASSERT_EQ(ApplyUpdate(setting.optimizer, setting.hyper, 1, range).non_finite, kAllFinite);
        for (uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(std::isnan(served.Get(i)));
      }
    }
  });
}

TEST(UpdateBits, ServedRoundingAtTheEdgesOfFloat16AndBFloat16) {
  Setting setting = AllSettings()[2];
  setting.hyper.lr = 0;  // the master stays
  const float edges[] = {0.0f,     -0.0f,    65504.0f, 65519.99f, 65520.0f, 65536.0f, 1e10f,
                         6.1e-5f,  6.0e-5f,  5.96e-8f, 2.98e-8f,  2.99e-8f, 1e-8f,    1e-40f,
                         -65520.f, -6.0e-5f, 1.00097f, 1.00048f,  3.39e38f, -3.4e38f, 1.5e-45f};
  constexpr uint64_t kCount = std::size(edges);
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      GradientBuffer gradient(DType::kFloat32, kCount);
      GradientBuffer served(dtype, kCount);
      const GradientSource source = gradient.source();
      std::vector<float> master(edges, edges + kCount);
      UpdateRange range;
      range.count = kCount;
      range.gradients = std::span(&source, 1);
      range.in.data[0] = range.out.data[0] = std::as_writable_bytes(std::span(master)).data();
      range.served = const_cast<std::byte*>(served.source().data);
      range.served_dtype = dtype;
      ASSERT_EQ(ApplyUpdate(setting.optimizer, setting.hyper, 1, range).non_finite, kAllFinite);
      for (uint64_t i = 0; i < kCount; ++i) {
        EXPECT_EQ(ServedBits(dtype, served.Get(i)), ServedBits(dtype, edges[i])) << edges[i];
      }
    }
  });
}

}  // namespace
}  // namespace luwu::optim::testing
