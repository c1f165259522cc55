// A lead whose job was loaded with state of a later step.
#include <gtest/gtest.h>

#include <optional>

#include "server/cluster/commit_coordinator.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.job = "job";
  options.epoch = 9;
  options.nodes = fakes::NodeList(1);
  options.loss_scaling.initial_scale = 1024;
  options.loss_scaling.growth_interval = 4;
  return options;
}

StatusOr<StepDecision> Report(CommitCoordinator& coordinator, uint64_t step) {
  std::optional<StatusOr<StepDecision>> answer;
  const StepReport report = {9, step, 0, {"", {}, std::vector<ExactSum>(1)}};
  coordinator.Report(report, TimePoint::max(), [&answer](auto decision) { answer = decision; });
  return answer.value_or(Error(ErrorCode::kInternal, "no answer"));
}

TEST(CoordinatorStartAt, StepAndLossScaleGoOn) {
  CommitCoordinator coordinator(Options());
  ASSERT_TRUE(coordinator.StartAt(7, 64, 3).ok());
  ASSERT_TRUE(coordinator.StartAt(7, 64, 3).ok()) << "it may be said again";
  EXPECT_EQ(CodeOf(Report(coordinator, 0).status()), ErrorCode::kStepMismatch);
  const StatusOr<StepDecision> decision = Report(coordinator, 7);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->next_loss_scale, 128) << "the fourth finite step in a row";
}

TEST(CoordinatorStartAt, ATrainingJobStaysWhereItIs) {
  CommitCoordinator coordinator(Options());
  ASSERT_TRUE(Report(coordinator, 0).ok());
  EXPECT_EQ(CodeOf(coordinator.StartAt(7, 64, 3)), ErrorCode::kState);
  EXPECT_TRUE(Report(coordinator, 1).ok());
}

}  // namespace
}  // namespace luwu
