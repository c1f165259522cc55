// 1,000 steps of each optimizer in fp32 against the formulas in float64.
//
// The reference takes the hyper-parameters and their derived factors rounded to fp32, as they are
// in the kernel (a beta2 of 0.999 is 0.99900001 in fp32 and its complement 0.001 does not belong to
// it: that is the algorithm's input, not an error of arithmetic); everything on elements is double.
//
// Two measures, because fp32 weights cannot hold 1,000 updates exactly: each step rounds a weight
// once or twice to 2^-24 of itself, and 1,000 such roundings wander by about 1e-6 of it.
//  - Every single step, from the fp32 state before it: each new value is within 1e-6 of the double
//    result, relative to the sum of the magnitudes it is made of (no cancellation flatters it).
//  - The whole run: the norm of the difference over the norm of the weights. Weight decay rounds
//    p * 0.99999 alike in neighbouring steps, so AdamW wanders furthest (2e-6).
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/unit/optim/support.h"

namespace luwu::optim::testing {
namespace {

using DoubleState = std::array<double, kStateArraysMax>;

constexpr uint64_t kCount = 1003;
constexpr uint64_t kSteps = 1000;

// One fp32 run of a setting under a falling learning rate, with two bf16 workers and a mean.
class TrainingRun {
 public:
  explicit TrainingRun(const Setting& setting) : setting_(setting), served_(kCount) {
    state.arrays[0].resize(kCount);
    for (float& weight : state.arrays[0]) weight = random_.Weight();
    for (uint32_t k = 1; k < kStateArraysMax; ++k) state.arrays[k].assign(kCount, 0.0f);
  }

  void Step() {
    for (GradientBuffer& gradient : gradients_) gradient.Fill(random_);
    const std::vector<GradientSource> sources = SourcesOf(gradients_);
    UpdateRange range;
    range.count = kCount;
    range.gradients = sources;
    range.gradient_scale = 0.5f;
    range.in = range.out = state.pointers();
    range.served = std::as_writable_bytes(std::span(served_)).data();
    range.served_dtype = DType::kFloat32;
    const Setting now = SettingNow();
    ASSERT_EQ(ApplyUpdate(now.optimizer, now.hyper, steps, range).non_finite, kAllFinite);
    ASSERT_EQ(served_, state.arrays[0]);
    ++steps;
  }

  // Of step number `steps`, before or after Step().
  Setting SettingNow() const {
    Setting now = setting_;
    now.hyper.lr = setting_.hyper.lr * (1 - 0.0009 * static_cast<double>(steps));
    return now;
  }
  // Of the last step.
  double Gradient(uint64_t i) const {
    return (static_cast<double>(gradients_[0].Get(i)) + gradients_[1].Get(i)) / 2;
  }

  State state;
  uint64_t steps = 0;

 private:
  const Setting& setting_;
  Random random_{7};
  std::vector<GradientBuffer> gradients_{2, GradientBuffer(DType::kBFloat16, kCount)};
  std::vector<float> served_;
};

DoubleState At(const State& state, uint64_t i) {
  return {state.arrays[0][i], state.arrays[1][i], state.arrays[2][i], state.arrays[3][i]};
}

TEST(LongRun, EveryOfAThousandStepsIsWithinOneMillionthOfDouble) {
  for (const Setting& setting : AllSettings()) {
    SCOPED_TRACE(setting.name);
    TrainingRun run(setting);
    double worst = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      const State before = run.state;
      const Setting now = run.SettingNow();
      run.Step();
      for (uint64_t i = 0; i < kCount; ++i) {
        const DoubleState old = At(before, i), got = At(run.state, i);
        DoubleState expected = old;
        const double g = run.Gradient(i);
        ScalarUpdate(now, step, g, expected.data());
        const double magnitude = std::abs(old[0]) + std::abs(expected[0] - old[0]);
        worst = std::max(worst, std::abs(got[0] - expected[0]) / magnitude);
        const bool in_gradient = setting.optimizer.kind == OptimizerKind::kSgd ||
                                 setting.optimizer.kind == OptimizerKind::kAdam ||
                                 setting.optimizer.kind == OptimizerKind::kAdagrad;
        const double decay = in_gradient ? setting.hyper.weight_decay * std::abs(old[0]) : 0;
        const double entering = std::abs(g) + decay;
        const bool squares = setting.optimizer.kind == OptimizerKind::kAdagrad;
        const double parts = std::abs(old[1]) + (squares ? entering * entering : entering);
        if (parts > 1e-30) worst = std::max(worst, std::abs(got[1] - expected[1]) / parts);
        for (uint32_t k = 2; k < kStateArraysMax; ++k) {
          const double squared = old[k] + (1 - setting.hyper.beta2) * entering * entering;
          if (squared > 1e-30) worst = std::max(worst, std::abs(got[k] - expected[k]) / squared);
        }
      }
    }
    RecordProperty(setting.name, fmt::format("{:.3g}", worst));
    EXPECT_LE(worst, 1e-6);
    EXPECT_GT(worst, 0);
  }
}

// A sign flips where c rounds to the other side of 0, and then a weight differs by a whole 2 * lr;
// AdamW and Lion decay by a factor that rounds alike in neighbouring steps.
double Wander(const Setting& setting) {
  if (setting.optimizer.kind == OptimizerKind::kLion) return 1e-4;
  return setting.optimizer.kind == OptimizerKind::kAdamW ? 3e-6 : 2e-6;
}

TEST(LongRun, AThousandStepsWanderByNoMoreThanTheirRoundings) {
  for (const Setting& setting : AllSettings()) {
    SCOPED_TRACE(setting.name);
    TrainingRun run(setting);
    std::vector<DoubleState> reference;
    for (uint64_t i = 0; i < kCount; ++i) reference.push_back(At(run.state, i));
    for (uint64_t step = 0; step < kSteps; ++step) {
      const Setting now = run.SettingNow();
      run.Step();
      for (uint64_t i = 0; i < kCount; ++i) {
        ScalarUpdate(now, step, run.Gradient(i), reference[i].data());
      }
    }
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      const double d = run.state.arrays[0][i] - reference[i][0];
      difference += d * d;
      norm += reference[i][0] * reference[i][0];
    }
    RecordProperty(setting.name, fmt::format("{:.3g}", std::sqrt(difference / norm)));
    EXPECT_LE(std::sqrt(difference / norm), Wander(setting));
  }
}

}  // namespace
}  // namespace luwu::optim::testing
