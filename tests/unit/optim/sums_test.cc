// Squared norms and held sums.
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/unit/optim/format_oracle.h"

namespace luwu::optim::testing {
namespace {

// The rule of UpdateOutcome: element k of its tile goes to lane k / 2 % 8, tile after tile.
double LaneSum(const std::vector<float>& values, uint64_t first) {
  double lanes[8] = {};
  uint64_t in_tile = 0;
  for (uint64_t i = 0; i < values.size(); ++i, ++in_tile) {
    if ((first + i) % 256 == 0) in_tile = 0;
    lanes[in_tile / 2 % 8] += static_cast<double>(values[i]) * values[i];
  }
  for (int step = 4; step > 0; step /= 2) {
    for (int k = 0; k < step; ++k) lanes[k] += lanes[k + step];
  }
  return lanes[0];
}

struct Sums {
  std::vector<GradientBuffer> gradients;
  std::vector<GradientSource> sources;
  uint64_t count = 0;

  Sums(uint64_t n, DType dtype, size_t workers) : count(n) {
    Random random(n);
    for (size_t k = 0; k < workers; ++k) {
      gradients.emplace_back(dtype, n);
      gradients.back().Fill(random);
    }
    sources = SourcesOf(gradients);
  }
  std::vector<float> Scaled(float scale) const {
    std::vector<float> values;
    for (uint64_t i = 0; i < count; ++i) values.push_back(ScalarSum(gradients, i, scale));
    return values;
  }
};

// Where an update keeps the sum.
struct Held {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
};

UpdateOutcome Update(const Sums& sums, uint64_t first, float scale, Held held,
                     std::vector<float>* masters) {
  const OptimizerSpec spec = {.kind = OptimizerKind::kSgd};
  HyperParameters hyper;
  hyper.lr = 0.5;
  masters->assign(first + sums.count, 0.0f);
  std::vector<std::byte> served(2 * (first + sums.count));
  UpdateRange range;
  range.first = first;
  range.count = sums.count;
  range.shard_elements = first + sums.count;
  range.gradients = sums.sources;
  range.gradient_scale = scale;
  range.out.data[0] = std::as_writable_bytes(std::span(*masters)).data();
  range.in = range.out;
  range.served = served.data();
  range.served_dtype = DType::kBFloat16;
  range.held = held.data;
  range.held_dtype = held.dtype;
  return ApplyUpdate(spec, hyper, 0, range);
}

TEST(SquaredNorm, FollowsTheLaneRuleForEveryLengthAndTarget) {
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (uint64_t count = 1; count <= 700; count += count < 130 ? 1 : 57) {
      for (const uint64_t first : {0, 5, 255, 256}) {
        const Sums sums(count, DType::kBFloat16, 2);
        std::vector<float> masters;
        const double expected = LaneSum(sums.Scaled(0.5f), first);
        ASSERT_EQ(Update(sums, first, 0.5f, {}, &masters).squared_norm, expected);
        std::vector<std::byte> held(4 * count);
        const HoldRange range = {first, count, sums.sources, 0.5f, held.data(), DType::kFloat32};
        ASSERT_EQ(HoldSum(range).squared_norm, expected);
      }
    }
  });
}

TEST(SquaredNorm, IsThatOfLongDouble) {
  const Sums sums(100003, DType::kFloat32, 3);
  long double expected = 0;
  for (const float value : sums.Scaled(1)) expected += static_cast<long double>(value) * value;
  std::vector<float> masters;
  const double norm = Update(sums, 0, 1, {}, &masters).squared_norm;
  EXPECT_LT(std::abs(static_cast<double>(norm / expected - 1)), 1e-12);
}

TEST(SquaredNorm, HoldsSquaresThatFloatCannot) {
  Sums sums(40, DType::kFloat32, 1);
  sums.gradients[0].Set(3, 3e38f);
  sums.gradients[0].Set(39, -3e38f);
  std::vector<std::byte> held(4 * 40);
  const UpdateOutcome outcome = HoldSum({0, 40, sums.sources, 1, held.data(), DType::kFloat32});
  EXPECT_EQ(outcome.non_finite, kAllFinite);
  EXPECT_NEAR(outcome.squared_norm / (2 * 9e76), 1, 1e-6);
}

// On 64 bytes the sum is written past the caches, elsewhere it is not.
TEST(HeldSum, IsTheUnscaledSumAndChangesNothingElse) {
  alignas(64) std::array<std::byte, 4 * 1111 + 128> memory;
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const uint64_t count : {1, 63, 64, 100, 256, 300, 1111}) {
      for (const auto& [dtype, skew] : {std::pair(DType::kFloat16, 64),
                                        {DType::kBFloat16, 64},
                                        {DType::kFloat16, 68},
                                        {DType::kBFloat16, 68}}) {
        const Sums sums(count, dtype, 3);
        memory.fill(std::byte{7});
        std::byte* held = memory.data() + skew;
        std::vector<float> plain, masters;
        Update(sums, 0, 0.25f, {}, &plain);
        Update(sums, 0, 0.25f, {held, DType::kFloat32}, &masters);
        EXPECT_TRUE(SameBits(plain, masters));
        const std::vector<std::byte> bytes(held, held + 4 * count);
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(Bits(Get<float>(bytes, i)), Bits(ScalarSum(sums.gradients, i, 1)));
        }
        ASSERT_EQ(held[-1], std::byte{7}) << "wrote before the held sum";
        ASSERT_EQ(held[4 * count], std::byte{7}) << "wrote beyond the held sum";
      }
    }
  });
}

// Deferred (hold, then update from what was held) equals speculative (update and hold at once).
TEST(HeldSum, OfBFloat16IsRoundedBeforeAllOtherUse) {
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const uint64_t count : {1, 64, 100, 256, 300, 1111}) {
      const Sums sums(count, DType::kBFloat16, 3);
      std::vector<std::byte> held(2 * count + 1, std::byte{7}), again(2 * count);
      std::vector<float> at_once, later;
      const UpdateOutcome outcome =
          Update(sums, 0, 0.3f, {held.data(), DType::kBFloat16}, &at_once);
      for (uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(Get<uint16_t>(held, i), FloatToBFloat16(ScalarSum(sums.gradients, i, 1)));
      }
      ASSERT_EQ(held.back(), std::byte{7}) << "wrote beyond the held sum";
      const UpdateOutcome holding =
          HoldSum({0, count, sums.sources, 0.3f, again.data(), DType::kBFloat16});
      held.pop_back();
      EXPECT_EQ(held, again);
      EXPECT_EQ(holding.squared_norm, outcome.squared_norm);
      Sums from_held(count, DType::kBFloat16, 0);
      from_held.sources = {{held.data(), DType::kBFloat16}};
      EXPECT_EQ(Update(from_held, 0, 0.3f, {}, &later).squared_norm, outcome.squared_norm);
      EXPECT_TRUE(SameBits(at_once, later));
    }
  });
}

TEST(HeldSum, MayBeTheRunningSumItself) {
  for (const uint64_t count : {64, 300, 1111}) {
    const Sums sums(count, DType::kBFloat16, 3);
    std::vector<float> running(count);
    AccumulateGradient(sums.sources[0], count, true, running.data());
    std::byte* held = std::as_writable_bytes(std::span(running)).data();
    const std::vector<GradientSource> sources = {
        {held, DType::kFloat32}, sums.sources[1], sums.sources[2]};
    HoldSum({0, count, sources, 1, held, DType::kFloat32});
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(Bits(running[i]), Bits(ScalarSum(sums.gradients, i, 1)));
    }
  }
}

TEST(HeldSum, RoundingToBFloat16MayOverflow) {
  Sums sums(300, DType::kFloat32, 1);
  sums.gradients[0].Set(299, 3.4e38f);  // finite, but the nearest bf16 is infinite
  std::vector<std::byte> held(2 * 300);
  EXPECT_EQ(HoldSum({0, 300, sums.sources, 1, held.data(), DType::kBFloat16}).non_finite, 299u);
  sums.gradients[0].Set(17, NAN);
  EXPECT_EQ(HoldSum({0, 300, sums.sources, 1, held.data(), DType::kBFloat16}).non_finite, 17u);
}

}  // namespace
}  // namespace luwu::optim::testing
