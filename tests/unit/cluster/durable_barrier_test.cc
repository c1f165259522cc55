// When a durable point is complete, and who is told.
#include "server/cluster/durable_barrier.h"

#include <map>

#include <gtest/gtest.h>

#include "server/cluster/commit_coordinator.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

constexpr uint64_t kEpoch = 5;

// Answers by name; one that came twice fails the test.
class Answers {
 public:
  DurableCallback For(const std::string& name) {
    return [this, name](const Status& status) {
      EXPECT_TRUE(got_.emplace(name, status).second) << name << " was answered twice";
    };
  }
  bool Has(const std::string& name) const { return got_.contains(name); }
  const Status& Of(const std::string& name) const { return got_.at(name); }

 private:
  std::map<std::string, Status> got_;
};

TEST(DurableBarrier, IsCompleteWhenTheLastNodeHasStored) {
  DurableBarrier barrier("gpt", kEpoch, fakes::NodeList(2), std::nullopt);
  Answers answers;
  barrier.Await(4, TimePoint::max(), answers.For("checkpoint"));
  barrier.Report({kEpoch, 4, 0}, TimePoint::max(), answers.For("n0"));
  barrier.Report({kEpoch, 4, 0}, TimePoint::max(), answers.For("n0 again"));
  EXPECT_FALSE(answers.Has("n0") || answers.Has("checkpoint"));
  EXPECT_FALSE(barrier.confirmed().has_value());
  barrier.Report({kEpoch, 4, 1}, TimePoint::max(), answers.For("n1"));
  for (const char* name : {"checkpoint", "n0", "n0 again", "n1"}) {
    ASSERT_TRUE(answers.Has(name)) << name;
    EXPECT_TRUE(answers.Of(name).ok()) << name;
  }
  EXPECT_EQ(barrier.confirmed(), 4u);
  barrier.Report({kEpoch, 4, 1}, TimePoint::max(), answers.For("late"));
  EXPECT_TRUE(answers.Has("late"));
}

TEST(DurableBarrier, PartsOfDifferentPointsMakeNone) {
  DurableBarrier barrier("gpt", kEpoch, fakes::NodeList(2), std::nullopt);
  Answers answers;
  barrier.Report({kEpoch, 4, 0}, TimePoint::max(), answers.For("n0"));
  barrier.Report({kEpoch, 6, 1}, TimePoint::max(), answers.For("n1"));
  EXPECT_FALSE(answers.Has("n0") || answers.Has("n1"));
  // A later point that is complete answers for the earlier one, too.
  barrier.Report({kEpoch, 6, 0}, TimePoint::max(), answers.For("n0 next"));
  EXPECT_TRUE(answers.Has("n0") && answers.Has("n1") && answers.Has("n0 next"));
  EXPECT_EQ(barrier.confirmed(), 6u);
}

TEST(DurableBarrier, NodesWithoutWeightStoreNothing) {
  std::vector<Node> nodes = fakes::NodeList(2);
  nodes[1].weight = 0;
  DurableBarrier barrier("gpt", kEpoch, nodes, std::nullopt);
  Answers answers;
  barrier.Report({kEpoch, 1, 0}, TimePoint::max(), answers.For("n0"));
  EXPECT_TRUE(answers.Has("n0"));
}

TEST(DurableBarrier, DeadlineNamesTheNodesAndKeepsTheReport) {
  DurableBarrier barrier("gpt", kEpoch, fakes::NodeList(3), std::nullopt);
  Answers answers;
  const TimePoint start;
  barrier.Report({kEpoch, 2, 0}, start + Milliseconds(10), answers.For("n0"));
  barrier.Tick(start + Milliseconds(9));
  EXPECT_FALSE(answers.Has("n0"));
  barrier.Tick(start + Milliseconds(10));
  ASSERT_TRUE(answers.Has("n0"));
  EXPECT_EQ(CodeOf(answers.Of("n0")), ErrorCode::kDeadline);
  EXPECT_NE(MessageOf(answers.Of("n0")).find("'n1', 'n2'"), std::string::npos)
      << MessageOf(answers.Of("n0"));
  barrier.Report({kEpoch, 2, 1}, TimePoint::max(), answers.For("n1"));
  barrier.Report({kEpoch, 2, 2}, TimePoint::max(), answers.For("n2"));
  EXPECT_TRUE(answers.Has("n1") && answers.Has("n2"));
}

TEST(DurableBarrier, RefusesStrangersAndEndsItsWaits) {
  DurableBarrier barrier("gpt", kEpoch, fakes::NodeList(2), std::nullopt);
  Answers answers;
  barrier.Report({kEpoch + 1, 2, 0}, TimePoint::max(), answers.For("epoch"));
  EXPECT_EQ(CodeOf(answers.Of("epoch")), ErrorCode::kStaleEpoch);
  barrier.Report({kEpoch, 2, 2}, TimePoint::max(), answers.For("node"));
  EXPECT_EQ(CodeOf(answers.Of("node")), ErrorCode::kInvalidArgument);
  barrier.Report({kEpoch, 2, 0}, TimePoint::max(), answers.For("n0"));
  barrier.Shutdown(Error(ErrorCode::kRolledBack, "going back"));
  EXPECT_EQ(CodeOf(answers.Of("n0")), ErrorCode::kRolledBack);
  barrier.Report({kEpoch, 2, 1}, TimePoint::max(), answers.For("after"));
  EXPECT_EQ(CodeOf(answers.Of("after")), ErrorCode::kRolledBack);
}

TEST(DurableBarrier, UnfinishedPointsAreBounded) {
  DurableBarrier barrier("gpt", kEpoch, fakes::NodeList(2), std::nullopt);
  uint64_t refused = 0;
  for (uint64_t step = 0; step < 100; ++step) {
    barrier.Report({kEpoch, step, 0}, TimePoint::max(), [&](const Status& status) {
      refused += CodeOf(status) == ErrorCode::kResourceExhausted;
    });
  }
  EXPECT_GT(refused, 50u);
  barrier.Shutdown(Error(ErrorCode::kCancelled, "the test ends"));
}

StepReport FiniteReport(uint64_t step, uint32_t node) {
  return {.epoch = kEpoch,
          .step = step,
          .node = node,
          .findings = {.non_finite = "", .norm_limits = {}, .squares = {ExactSum()}}};
}

CoordinatorOptions TwoNodes() {
  CoordinatorOptions options;
  options.job = "gpt";
  options.epoch = kEpoch;
  options.nodes = fakes::NodeList(2);
  options.on_non_finite = NonFinitePolicy::kSkip;
  return options;
}

TEST(RestoredCoordinator, BeginsAtThePointWithItsLossScale) {
  CoordinatorOptions options = TwoNodes();
  options.loss_scaling.initial_scale = 1024;
  options.loss_scaling.growth_factor = 2;
  options.loss_scaling.backoff_factor = 0.5;
  options.loss_scaling.growth_interval = 3;
  options.restored = persist::Point{.step = 41, .epoch = 3, .loss_scale = 64, .finite_steps = 1};
  CommitCoordinator coordinator(options);
  EXPECT_EQ(coordinator.next_step(), 41u);
  EXPECT_EQ(coordinator.durable_step(), 41u);
  const auto decide = [&](uint64_t step) {
    StatusOr<StepDecision> decision = StepDecision();
    coordinator.Report(FiniteReport(step, 0), TimePoint::max(), [](const auto&) {});
    coordinator.Report(FiniteReport(step, 1), TimePoint::max(),
                       [&](StatusOr<StepDecision> got) { decision = std::move(got); });
    return decision;
  };
  const auto first = decide(41);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->next_loss_scale, 64);
  EXPECT_EQ(first->finite_steps, 2u);
  const auto second = decide(42);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->next_loss_scale, 128);  // the third in a row, the first one before the point
  EXPECT_EQ(second->finite_steps, 0u);
}

TEST(HeldDecision, ComesWithRelease) {
  CommitCoordinator coordinator(TwoNodes());
  const StatusOr<uint64_t> held = coordinator.Hold(TimePoint::max());
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(*held, 0u);
  EXPECT_EQ(CodeOf(coordinator.Hold(TimePoint::max()).status()), ErrorCode::kState);
  int answered = 0;
  for (uint32_t node = 0; node < 2; ++node) {
    coordinator.Report(FiniteReport(0, node), TimePoint::max(),
                       [&](const StatusOr<StepDecision>& decision) { answered += decision.ok(); });
  }
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(coordinator.next_step(), 0u);
  coordinator.Release();
  EXPECT_EQ(answered, 2);
  EXPECT_EQ(coordinator.next_step(), 1u);
}

TEST(HeldDecision, DoesNotOutliveItsTime) {
  CommitCoordinator coordinator(TwoNodes());
  const TimePoint start;
  ASSERT_TRUE(coordinator.Hold(start + Milliseconds(100)).ok());
  int answered = 0;
  for (uint32_t node = 0; node < 2; ++node) {
    coordinator.Report(FiniteReport(0, node), TimePoint::max(),
                       [&](const StatusOr<StepDecision>& decision) { answered += decision.ok(); });
  }
  coordinator.Tick(start + Milliseconds(99));
  EXPECT_EQ(answered, 0);
  coordinator.Tick(start + Milliseconds(100));
  EXPECT_EQ(answered, 2);
}

}  // namespace
}  // namespace luwu
