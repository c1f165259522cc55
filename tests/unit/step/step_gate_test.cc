#include "server/step/step_gate.h"

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::AdamHyper;

TEST(StepGate, NamesBothRanksAndTheFieldThatDiffers) {
  StepGate gate(2, 1);
  ASSERT_TRUE(gate.Begin(1, {AdamHyper(0.01), AdamHyper(0.02)}).ok());
  const Status status = gate.Begin(0, {AdamHyper(0.01), AdamHyper(0.03)});
  EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find("rank 0 begins step 0 with other hyper-parameters than rank 1"),
            std::string::npos)
      << MessageOf(status);
  EXPECT_NE(MessageOf(status).find("group 1, lr 0.03 against 0.02"), std::string::npos)
      << MessageOf(status);
  EXPECT_FALSE(gate.RankFinished(0));
  EXPECT_TRUE(gate.Begin(0, {AdamHyper(0.01), AdamHyper(0.02)}).ok());
}

TEST(StepGate, AWorkerThatCameBackMayChooseAnewWhileNothingDependsOnIt) {
  StepGate gate(1, 1);
  ASSERT_TRUE(gate.Begin(0, {AdamHyper(0.01)}).ok());
  gate.ForgetRank(0);
  EXPECT_TRUE(gate.Begin(0, {AdamHyper(0.02)}).ok());
  gate.NoteUpdateBegun();
  gate.ForgetRank(0);
  EXPECT_FALSE(gate.Begin(0, {AdamHyper(0.01)}).ok());
}

TEST(StepGate, IsReadyWhenEveryRankTookPartAndEveryShardIsUpdated) {
  StepGate gate(2, 1);
  ASSERT_TRUE(gate.Begin(0, {AdamHyper()}).ok());
  gate.RankClosedShard(0);
  EXPECT_TRUE(gate.RankFinished(0));
  ASSERT_TRUE(gate.Begin(1, {AdamHyper()}).ok());
  gate.RankClosedShard(1);
  EXPECT_FALSE(gate.ReadyToReport());
  gate.ShardReady();
  EXPECT_TRUE(gate.ReadyToReport());
  gate.set_phase(StepGate::Phase::kReporting);
  EXPECT_FALSE(gate.ReadyToReport());
  gate.Finish({Outcome::kApplied, ""});
  EXPECT_EQ(gate.step(), 1u);
  EXPECT_EQ(gate.last()->step, 0u);
  EXPECT_FALSE(gate.RankFinished(0));
  EXPECT_EQ(gate.open_shards(1), 1u);
}

TEST(StepGate, ANodeWithoutShardsIsReadyWhenEveryRankHasBegun) {
  StepGate gate(2, 0);
  EXPECT_FALSE(gate.ReadyToReport());
  ASSERT_TRUE(gate.Begin(0, {AdamHyper()}).ok());
  EXPECT_FALSE(gate.ReadyToReport());
  ASSERT_TRUE(gate.Begin(1, {AdamHyper()}).ok());
  EXPECT_TRUE(gate.ReadyToReport());
}

}  // namespace
}  // namespace luwu
