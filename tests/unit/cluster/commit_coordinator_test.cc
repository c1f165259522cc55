#include "server/cluster/commit_coordinator.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

constexpr uint64_t kEpoch = 9;
const TimePoint kStart = TimePoint(std::chrono::hours(1));

CoordinatorOptions Options(uint32_t nodes, NonFinitePolicy policy = NonFinitePolicy::kSkip) {
  CoordinatorOptions options;
  options.job = "job";
  options.epoch = kEpoch;
  options.nodes = fakes::NodeList(nodes);
  options.on_non_finite = policy;
  return options;
}

StepReport Report(uint64_t step, uint32_t node, const std::string& non_finite,
                  uint64_t epoch = kEpoch) {
  return {epoch, step, node, {non_finite, {}, std::vector<ExactSum>(1)}};
}

// A report and its answer.
class Asked {
 public:
  Asked(CommitCoordinator& coordinator, StepReport report, TimePoint deadline = TimePoint::max()) {
    coordinator.Report(report, deadline, [answer = answer_](StatusOr<StepDecision> decision) {
      ASSERT_FALSE(answer->has_value()) << "answered twice";
      *answer = std::move(decision);
    });
  }
  bool answered() const { return answer_->has_value(); }
  Outcome outcome() const { return (*answer_)->value().outcome; }
  std::string culprit() const { return (*answer_)->value().culprit; }
  Status status() const { return (*answer_)->status(); }

 private:
  std::shared_ptr<std::optional<StatusOr<StepDecision>>> answer_ =
      std::make_shared<std::optional<StatusOr<StepDecision>>>();
};

TEST(CommitCoordinator, DecidesWhenTheLastNodeHasReported) {
  CommitCoordinator coordinator(Options(3));
  const Asked a(coordinator, Report(0, 2, ""));
  const Asked b(coordinator, Report(0, 0, ""));
  EXPECT_FALSE(a.answered() || b.answered());
  const Asked c(coordinator, Report(0, 1, ""));
  for (const Asked* asked : {&a, &b, &c}) {
    ASSERT_TRUE(asked->answered());
    EXPECT_EQ(asked->outcome(), Outcome::kApplied);
  }
  EXPECT_EQ(coordinator.next_step(), 1u);
}

TEST(CommitCoordinator, ARepeatedReportCountsOnceAndIsAnsweredToo) {
  CommitCoordinator coordinator(Options(2));
  const Asked a(coordinator, Report(0, 0, ""));
  const Asked again(coordinator, Report(0, 0, "now something else"));
  EXPECT_FALSE(a.answered() || again.answered());
  const Asked b(coordinator, Report(0, 1, ""));
  EXPECT_EQ(a.outcome(), Outcome::kApplied);
  EXPECT_EQ(again.outcome(), Outcome::kApplied);
  const Asked late(coordinator, Report(0, 1, ""));
  EXPECT_EQ(late.outcome(), Outcome::kApplied);
  EXPECT_EQ(coordinator.next_step(), 1u);
}

TEST(CommitCoordinator, OneNodeWithNonFiniteGradientsDecidesForAll) {
  for (const auto& [policy, outcome] : {std::pair(NonFinitePolicy::kSkip, Outcome::kSkipped),
                                        std::pair(NonFinitePolicy::kFail, Outcome::kFailed)}) {
    CommitCoordinator coordinator(Options(2, policy));
    const Asked a(coordinator, Report(0, 1, "node 'n1': layer 3"));
    const Asked b(coordinator, Report(0, 0, ""));
    EXPECT_EQ(a.outcome(), outcome);
    EXPECT_EQ(b.outcome(), outcome);
    EXPECT_EQ(b.culprit(), "node 'n1': layer 3");
    // The next step begins clean.
    const Asked c(coordinator, Report(1, 1, ""));
    const Asked d(coordinator, Report(1, 0, ""));
    EXPECT_EQ(d.outcome(), Outcome::kApplied);
  }
}

TEST(CommitCoordinator, TheCulpritDoesNotDependOnTheOrderOfArrival) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint32_t> order(4);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    CommitCoordinator coordinator(Options(4));
    std::vector<Asked> asked;
    for (const uint32_t node : order) {
      asked.emplace_back(coordinator,
                         Report(0, node, node % 2 == 1 ? "of " + std::to_string(node) : ""));
    }
    for (const Asked& one : asked) EXPECT_EQ(one.culprit(), "of 1");
  }
}

TEST(CommitCoordinator, ADeadlineNamesTheMissingNodesAndTheReportStaysCounted) {
  CommitCoordinator coordinator(Options(3));
  const Asked a(coordinator, Report(0, 0, ""), kStart + Milliseconds(100));
  const Asked b(coordinator, Report(0, 1, ""), kStart + Milliseconds(200));
  coordinator.Tick(kStart + Milliseconds(100));
  ASSERT_TRUE(a.answered());
  EXPECT_FALSE(b.answered());
  EXPECT_EQ(CodeOf(a.status()), ErrorCode::kDeadline);
  EXPECT_NE(MessageOf(a.status()).find("no report from node 'n2'"), std::string::npos)
      << MessageOf(a.status());
  const Asked c(coordinator, Report(0, 2, ""));
  EXPECT_EQ(b.outcome(), Outcome::kApplied);
  const Asked again(coordinator, Report(0, 0, ""));
  EXPECT_EQ(again.outcome(), Outcome::kApplied);
}

TEST(CommitCoordinator, NodesWithoutShardsAreNotWaitedFor) {
  CoordinatorOptions options = Options(2);
  options.nodes[1].weight = 0;
  CommitCoordinator coordinator(options);
  const Asked a(coordinator, Report(0, 0, ""));
  EXPECT_EQ(a.outcome(), Outcome::kApplied);
}

TEST(CommitCoordinator, RefusesStrangers) {
  CommitCoordinator coordinator(Options(2));
  EXPECT_EQ(CodeOf(Asked(coordinator, Report(0, 0, "", kEpoch + 1)).status()),
            ErrorCode::kStaleEpoch);
  EXPECT_EQ(CodeOf(Asked(coordinator, Report(0, 2, "")).status()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Asked(coordinator, Report(1, 0, "")).status()), ErrorCode::kStepMismatch);
  EXPECT_EQ(coordinator.next_step(), 0u);
}

TEST(CommitCoordinator, RemembersTheLastFewDecisionsOnly) {
  CommitCoordinator coordinator(Options(1));
  for (uint64_t step = 0; step < 6; ++step) {
    EXPECT_EQ(Asked(coordinator, Report(step, 0, step == 3 ? "bad" : "")).outcome(),
              step == 3 ? Outcome::kSkipped : Outcome::kApplied);
  }
  EXPECT_EQ(Asked(coordinator, Report(3, 0, "")).outcome(), Outcome::kSkipped);
  EXPECT_EQ(CodeOf(Asked(coordinator, Report(1, 0, "")).status()), ErrorCode::kStepMismatch);
}

TEST(CommitCoordinator, ShutdownAndEndAnswerEverybody) {
  std::optional<Asked> waiting;
  {
    CommitCoordinator coordinator(Options(2));
    const Asked a(coordinator, Report(0, 0, ""));
    coordinator.Shutdown(Error(ErrorCode::kUnavailable, "the daemon stops"));
    EXPECT_EQ(CodeOf(a.status()), ErrorCode::kUnavailable);
    EXPECT_EQ(CodeOf(Asked(coordinator, Report(0, 1, "")).status()), ErrorCode::kUnavailable);
  }
  {
    CommitCoordinator coordinator(Options(2));
    waiting.emplace(coordinator, Report(0, 0, ""));
  }
  EXPECT_EQ(CodeOf(waiting->status()), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace luwu
