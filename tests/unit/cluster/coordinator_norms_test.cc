// Norms, clip factors and loss scale: what the lead decides beside the outcome.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "server/cluster/commit_coordinator.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

constexpr uint64_t kEpoch = 9;

CoordinatorOptions Options(uint32_t nodes, ClipScope scope, uint32_t units) {
  CoordinatorOptions options;
  options.job = "job";
  options.epoch = kEpoch;
  options.nodes = fakes::NodeList(nodes);
  options.on_non_finite = NonFinitePolicy::kSkip;
  options.clip_scope = scope;
  options.clip_units = units;
  return options;
}

StatusOr<StepDecision> Ask(CommitCoordinator& coordinator, uint64_t step, uint32_t node,
                           const StepFindings& findings) {
  StatusOr<StepDecision> answer = Error(ErrorCode::kInternal, "not decided yet");
  coordinator.Report({kEpoch, step, node, findings}, TimePoint::max(),
                     [&answer](StatusOr<StepDecision> decision) { answer = std::move(decision); });
  return answer;
}

// Of one node that sees these sums of squares, by clip unit.
StepFindings Found(std::vector<double> squares, std::vector<double> limits) {
  StepFindings findings;
  findings.norm_limits = std::move(limits);
  for (const double value : squares) findings.squares.emplace_back().Add(value);
  return findings;
}

bool SameBits(const StepDecision& a, const StepDecision& b) {
  return std::bit_cast<uint64_t>(a.grad_norm) == std::bit_cast<uint64_t>(b.grad_norm) &&
         a.factors == b.factors && a.next_loss_scale == b.next_loss_scale && a.outcome == b.outcome;
}

TEST(CoordinatorNorms, TheNormIsThatOfAllUnitsAndEachUnitHasItsFactor) {
  CommitCoordinator coordinator(Options(1, ClipScope::kGroup, 3));
  const auto decision = Ask(coordinator, 0, 0, Found({9, 16, 144}, {1.5, 0, 24}));
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->grad_norm, 13);
  ASSERT_EQ(decision->factors.size(), 3u);
  EXPECT_EQ(decision->factors[0], 1.5 / (3 + 1e-6));
  EXPECT_EQ(decision->factors[1], 1) << "not limited";
  EXPECT_EQ(decision->factors[2], 1) << "within its limit";
  EXPECT_EQ(decision->next_loss_scale, 1);
}

TEST(CoordinatorNorms, WithOneLimitForAllItHoldsForEachLayer) {
  CommitCoordinator coordinator(Options(1, ClipScope::kLayer, 2));
  const auto decision = Ask(coordinator, 0, 0, Found({9, 16}, {2}));
  EXPECT_EQ(decision->factors, (std::vector<double>{2 / (3 + 1e-6), 2 / (4 + 1e-6)}));
}

TEST(CoordinatorNorms, NothingClippedMeansNoFactors) {
  CommitCoordinator coordinator(Options(1, ClipScope::kGlobal, 1));
  EXPECT_TRUE(Ask(coordinator, 0, 0, Found({9}, {3.1}))->factors.empty());
  EXPECT_TRUE(Ask(coordinator, 1, 0, Found({9}, {0}))->factors.empty());
  EXPECT_TRUE(Ask(coordinator, 2, 0, Found({0}, {1}))->factors.empty());
  EXPECT_EQ(Ask(coordinator, 3, 0, Found({9}, {3}))->factor(0), 3 / (3 + 1e-6));
}

TEST(CoordinatorNorms, ANormOfAStepThatIsNotFiniteIsNaN) {
  CommitCoordinator coordinator(Options(1, ClipScope::kGlobal, 1));
  StepFindings findings;
  findings.non_finite = "layer 3";
  findings.norm_limits = {1};
  const auto decision = Ask(coordinator, 0, 0, findings);
  EXPECT_EQ(decision->outcome, Outcome::kSkipped);
  EXPECT_TRUE(std::isnan(decision->grad_norm));
  EXPECT_TRUE(decision->factors.empty());
}

// The same gradients on one node, or cut over several that report in any order.
TEST(CoordinatorNorms, TheBitsDependNeitherOnTheNumberOfNodesNorOnTheOrder) {
  std::mt19937_64 random(3);
  std::vector<std::vector<double>> values(4);
  for (auto& unit : values) {
    for (int i = 0; i < 50; ++i) {
      const auto x =
          static_cast<float>(std::ldexp(double(random() % 100000), int(random() % 40) - 30));
      unit.push_back(double(x) * double(x));
    }
  }
  std::optional<StepDecision> first;
  for (int round = 0; round < 30; ++round) {
    const uint32_t nodes = 1 + static_cast<uint32_t>(random() % 6);
    std::vector<StepFindings> findings(nodes);
    for (StepFindings& one : findings) {
      one.norm_limits = {1e-3};
      one.squares.resize(4);
    }
    for (uint32_t unit = 0; unit < 4; ++unit) {
      std::shuffle(values[unit].begin(), values[unit].end(), random);
      for (const double value : values[unit]) findings[random() % nodes].squares[unit].Add(value);
    }
    std::vector<uint32_t> order(nodes);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    CommitCoordinator coordinator(Options(nodes, ClipScope::kLayer, 4));
    StatusOr<StepDecision> decision;
    for (const uint32_t node : order) decision = Ask(coordinator, 0, node, findings[node]);
    ASSERT_TRUE(decision.ok()) << ToString(decision.status());
    if (!first) first = *decision;
    EXPECT_TRUE(SameBits(*decision, *first));
    const auto again = Ask(coordinator, 0, order[0], findings[order[0]]);
    EXPECT_TRUE(SameBits(*again, *first)) << "a repeated report gets the same answer";
  }
}

TEST(CoordinatorNorms, NodesMustAgreeOnTheLimits) {
  CommitCoordinator coordinator(Options(2, ClipScope::kGlobal, 1));
  (void)Ask(coordinator, 0, 0, Found({1}, {5}));
  const Status status = Ask(coordinator, 0, 1, Found({1}, {6})).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument);
  for (const char* words : {"'n1' reports max_norm [6]", "'n0' [5]"}) {
    EXPECT_NE(MessageOf(status).find(words), std::string::npos) << MessageOf(status);
  }
  EXPECT_TRUE(Ask(coordinator, 0, 1, Found({1}, {5})).ok());
}

TEST(CoordinatorNorms, ReportsOfAnotherShapeAreRefused) {
  CommitCoordinator coordinator(Options(1, ClipScope::kGroup, 2));
  EXPECT_EQ(CodeOf(Ask(coordinator, 0, 0, Found({1}, {5, 5})).status()),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Ask(coordinator, 0, 0, Found({1, 1}, {5})).status()),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Ask(coordinator, 0, 0, Found({1, 1}, {5, 5})).ok());
}

TEST(CoordinatorNorms, TheLossScaleIsDecidedOncePerStep) {
  CoordinatorOptions options = Options(2, ClipScope::kNone, 1);
  options.loss_scaling = {1024, 2, 0.5, 2};
  CommitCoordinator coordinator(options);
  const bool finite[] = {true, true, true, false, true, true};
  const float expected[] = {1024, 2048, 2048, 1024, 1024, 2048};
  for (uint64_t step = 0; step < 6; ++step) {
    StepFindings findings = Found({1}, {});
    if (!finite[step]) findings.non_finite = "bad";
    (void)Ask(coordinator, step, 1, findings);
    (void)Ask(coordinator, step, 1, findings);
    EXPECT_EQ(Ask(coordinator, step, 0, findings)->next_loss_scale, expected[step]) << step;
    EXPECT_EQ(Ask(coordinator, step, 1, findings)->next_loss_scale, expected[step]) << step;
  }
}

TEST(LossScale, StaysANormalFloat) {
  LossScale down({1e-37, 2, 0.001, 1});
  for (int i = 0; i < 5; ++i) down.Update(false);
  EXPECT_EQ(down.value(), std::numeric_limits<float>::min());
  down.Update(true);
  EXPECT_EQ(down.value(), 2 * std::numeric_limits<float>::min());
  LossScale up({0x1p127, 2, 0.5, 1});
  up.Update(true);
  EXPECT_EQ(up.value(), 0x1p127f);
  LossScale never({8, 2, 0.5, 0});
  for (int i = 0; i < 5000; ++i) never.Update(true);
  EXPECT_EQ(never.value(), 8);
  LossScale off({0, 2, 0.5, 1});
  off.Update(false);
  off.Update(true);
  EXPECT_EQ(off.value(), 1);
}

TEST(LossScale, MultipliesInDoubleAndRoundsOnce) {
  LossScale scale({3, 1.1, 0.3, 1});
  scale.Update(true);
  EXPECT_EQ(scale.value(), float(3.0 * 1.1));
  scale.Update(false);
  EXPECT_EQ(scale.value(), float(double(float(3.0 * 1.1)) * 0.3));
}

}  // namespace
}  // namespace luwu
