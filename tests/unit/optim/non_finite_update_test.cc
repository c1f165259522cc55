// ApplyUpdate's verdict: the first element whose scaled sum is NaN or infinite.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/unit/optim/support.h"

namespace luwu::optim::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Applies `gradients` out of place to fresh state and returns the verdict; the input state must
// not change, whatever the verdict is.
uint64_t Verdict(const Setting& setting, const std::vector<GradientBuffer>& gradients,
                 uint64_t count, float scale = 1) {
  Random random(count);
  State in(count, random);
  if (setting.optimizer.kind == OptimizerKind::kAdagrad) in.MakeSecondPositive();
  State out = in;
  const State before = in;
  std::vector<float> served(count);
  const std::vector<GradientSource> sources = SourcesOf(gradients);
  UpdateRange range;
  range.count = count;
  range.gradients = sources;
  range.gradient_scale = scale;
  range.in = in.pointers();
  range.out = out.pointers();
  range.served = std::as_writable_bytes(std::span(served)).data();
  range.served_dtype = DType::kBFloat16;
  const uint64_t verdict = ApplyUpdate(setting.optimizer, setting.hyper, 1, range).non_finite;
  for (uint32_t k = 0; k < kStateArraysMax; ++k) EXPECT_EQ(in.arrays[k], before.arrays[k]);
  return verdict;
}

TEST(NonFiniteUpdate, FoundAtEveryPositionOfEverySource) {
  constexpr uint64_t kCount = 141;
  const std::vector<Setting> settings = AllSettings();
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType dtype : kDTypes) {
      for (uint64_t i = 0; i < kCount; ++i) {
        const Setting& setting = settings[i % settings.size()];
        Random random(i);
        std::vector<GradientBuffer> gradients(3, GradientBuffer(dtype, kCount));
        for (GradientBuffer& gradient : gradients) gradient.Fill(random);
        ASSERT_EQ(Verdict(setting, gradients, kCount), kAllFinite);
        gradients[i % 3].Set(i, i % 2 == 0 ? std::nanf("") : kInfinity);
        ASSERT_EQ(Verdict(setting, gradients, kCount), i);
        gradients[(i + 1) % 3].Set(kCount - 1, -kInfinity);
        ASSERT_EQ(Verdict(setting, gradients, kCount), i) << "the first one counts";
      }
    }
  });
}

TEST(NonFiniteUpdate, FoundFarInsideALargeRange) {
  constexpr uint64_t kCount = 50000;
  for (const uint64_t i : {uint64_t{0}, uint64_t{16383}, uint64_t{33333}, kCount - 1}) {
    std::vector<GradientBuffer> gradients(1, GradientBuffer(DType::kBFloat16, kCount));
    gradients[0].Set(i, kInfinity);
    EXPECT_EQ(Verdict(AllSettings()[0], gradients, kCount), i);
  }
}

TEST(NonFiniteUpdate, EveryNaNPayloadCounts) {
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    std::vector<GradientBuffer> gradients(1, GradientBuffer(DType::kBFloat16, 20));
    for (const uint16_t bits : {0x7F81, 0x7FC0, 0x7FFF, 0xFF81, 0xFFFF, 0x7F80, 0xFF80}) {
      gradients[0].SetBits16(17, bits);
      EXPECT_EQ(Verdict(AllSettings()[0], gradients, 20), 17u) << std::hex << bits;
    }
    gradients[0].SetBits16(17, 0x7F7F);  // the largest finite value
    EXPECT_EQ(Verdict(AllSettings()[2], gradients, 20), kAllFinite);
  });
}

TEST(NonFiniteUpdate, FiniteAddendsMayOverflowInTheSum) {
  constexpr uint64_t kCount = 100;
  std::vector<GradientBuffer> gradients(2, GradientBuffer(DType::kFloat32, kCount));
  gradients[0].Set(42, 3e38f);
  EXPECT_EQ(Verdict(AllSettings()[2], gradients, kCount), kAllFinite);
  gradients[1].Set(42, 3e38f);
  EXPECT_EQ(Verdict(AllSettings()[2], gradients, kCount), 42u);
  EXPECT_EQ(Verdict(AllSettings()[2], gradients, kCount, 0.5f), 42u)
      << "the sum overflows before it is scaled";
}

TEST(NonFiniteUpdate, OppositeInfinitiesAreNaN) {
  std::vector<GradientBuffer> gradients(2, GradientBuffer(DType::kFloat16, 33));
  gradients[0].Set(32, kInfinity);
  gradients[1].Set(32, -kInfinity);
  EXPECT_EQ(Verdict(AllSettings()[0], gradients, 33), 32u);
}

TEST(NonFiniteUpdate, ScalingMayOverflow) {
  std::vector<GradientBuffer> gradients(1, GradientBuffer(DType::kFloat32, 10));
  gradients[0].Set(3, 2e38f);
  EXPECT_EQ(Verdict(AllSettings()[2], gradients, 10, 2.0f), 3u);
  EXPECT_EQ(Verdict(AllSettings()[2], gradients, 10, 1.0f), kAllFinite);
}

// Only gradients are judged: a huge finite gradient may overflow exp_avg_sq, as it does in torch.
TEST(NonFiniteUpdate, StateIsNotJudged) {
  std::vector<GradientBuffer> gradients(1, GradientBuffer(DType::kFloat32, 10));
  gradients[0].Set(3, 1e30f);
  EXPECT_EQ(Verdict(AllSettings()[0], gradients, 10), kAllFinite);
}

}  // namespace
}  // namespace luwu::optim::testing
