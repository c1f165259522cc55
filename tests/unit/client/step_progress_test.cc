#include "client/src/step_progress.h"

#include <gtest/gtest.h>

namespace luwu::client {
namespace {

JobSpec MakeSpec() {
  JobSpec spec;
  spec.name = "job";
  spec.world_size = 1;
  spec.shard_elements = 64;
  spec.layers = {
      {"wide", 200, {{.name = "w", .shape = {200}, .offset = 0, .group = 0, .trainable = true}}},
      {"cold", 64, {{.name = "c", .shape = {64}, .offset = 0, .group = 0, .trainable = false}}}};
  return spec;
}

class StepProgressTest : public ::testing::Test {
 protected:
  // Delivers every shard of layer 0 and ends the contribution.
  void DeliverAll() {
    for (uint32_t shard = 0; shard < 4; ++shard) progress_.MarkDelivered(0, shard);
    progress_.Finish(0, true, true);
  }

  const ModelPlan plan_{MakeSpec(),
                        {{.name = "a",
                          .weight = 1,
                          .control_address = "h:1",
                          .data_address = "h:2",
                          .shm_path = ""}}};
  StepProgress progress_{plan_, 3};
};

TEST_F(StepProgressTest, PushNeedsAnOpenStepAndATrainableOpenLayer) {
  EXPECT_EQ(CodeOf(progress_.CheckPush(0)), ErrorCode::kState);
  EXPECT_EQ(CodeOf(progress_.CheckPush(1)), ErrorCode::kInvalidArgument);
  progress_.OpenStep(3);
  EXPECT_TRUE(progress_.CheckPush(0).ok());
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
  DeliverAll();
  EXPECT_EQ(CodeOf(progress_.CheckPush(0)), ErrorCode::kLayerClosed);
  progress_.EndStep(3);
  EXPECT_EQ(progress_.current_step(), 4u);
  EXPECT_EQ(CodeOf(progress_.CheckPush(0)), ErrorCode::kState);
}

TEST_F(StepProgressTest, MicroStepsCountFinishedContributionsOnly) {
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, false).ok());
  EXPECT_EQ(progress_.micro_step(0), 0u);
  progress_.MarkDelivered(0, 2);
  progress_.Finish(0, true, false);  // ended half-way
  EXPECT_EQ(progress_.micro_step(0), 0u);
  EXPECT_TRUE(progress_.IsDelivered(0, 2));
  EXPECT_FALSE(progress_.IsDelivered(0, 1));
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, false).ok());
  DeliverAll();
  EXPECT_EQ(progress_.micro_step(0), 1u);
  EXPECT_FALSE(progress_.IsDelivered(0, 2));  // of the next contribution
}

TEST_F(StepProgressTest, HalfFinishedContributionMustBeRepeatedAsItWas) {
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
  progress_.MarkDelivered(0, 0);
  progress_.Finish(0, true, false);
  EXPECT_EQ(CodeOf(progress_.Start(0, PushKind::kCopy, false)), ErrorCode::kState);
  EXPECT_EQ(CodeOf(progress_.Start(0, PushKind::kClose, true)), ErrorCode::kState);
  EXPECT_EQ(CodeOf(progress_.Start(0, PushKind::kInPlace, true)), ErrorCode::kState);
  EXPECT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
}

TEST_F(StepProgressTest, ContributionThatSentNothingLeavesNoTrace) {
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
  progress_.Finish(0, false, false);
  EXPECT_TRUE(progress_.Start(0, PushKind::kClose, true).ok());
}

TEST_F(StepProgressTest, FirstOpenLayerIgnoresFrozenOnes) {
  progress_.OpenStep(3);
  EXPECT_EQ(progress_.FirstOpenLayer(), 0u);
  ASSERT_TRUE(progress_.Start(0, PushKind::kClose, true).ok());
  progress_.MarkNodeDelivered(0, 0);
  EXPECT_TRUE(progress_.AllDelivered(0));
  progress_.Finish(0, true, true);
  EXPECT_FALSE(progress_.FirstOpenLayer());
}

// Version v may be replaced once this worker closes the layer in step v + 1.
TEST_F(StepProgressTest, ClosingALayerEndsTheProtectionOfTheVersionBefore) {
  EXPECT_TRUE(progress_.IsProtected(0, 3));
  EXPECT_FALSE(progress_.IsProtected(0, 2));  // a former incarnation may have closed step 3
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
  DeliverAll();
  progress_.EndStep(3);
  progress_.OpenStep(4);
  EXPECT_TRUE(progress_.IsProtected(0, 3));
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, false).ok());
  DeliverAll();
  EXPECT_TRUE(progress_.IsProtected(0, 3));  // not closed yet
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
  EXPECT_FALSE(progress_.IsProtected(0, 3));  // from the first slot of the closing push on
  EXPECT_TRUE(progress_.IsProtected(0, 4));
  EXPECT_TRUE(progress_.IsProtected(1, 0));  // frozen
}

TEST_F(StepProgressTest, QueuedCloseRefusesLaterPushesAtOnce) {
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Queue(0, false).ok());
  ASSERT_TRUE(progress_.Queue(0, true).ok());
  EXPECT_EQ(CodeOf(progress_.Queue(0, false)), ErrorCode::kLayerClosed);
  EXPECT_TRUE(progress_.has_queued(0));
  progress_.Unqueue(0, false);
  progress_.Unqueue(0, true);
  EXPECT_FALSE(progress_.has_queued(0));
  EXPECT_TRUE(progress_.CheckPush(0).ok());
}

TEST_F(StepProgressTest, RepeatedBeginKeepsWhatWasPushed) {
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Start(0, PushKind::kCopy, true).ok());
  DeliverAll();
  progress_.OpenStep(3);
  EXPECT_EQ(CodeOf(progress_.CheckPush(0)), ErrorCode::kLayerClosed);
}

TEST_F(StepProgressTest, ReservedShardsKeepTheirContributionOpen) {
  progress_.OpenStep(3);
  ASSERT_TRUE(progress_.Start(0, PushKind::kInPlace, true).ok());
  progress_.SetReserved(0, 1, true);
  progress_.SetReserved(0, 1, true);
  EXPECT_TRUE(progress_.AnyReserved(0));
  EXPECT_TRUE(progress_.IsReserved(0, 1));
  progress_.SetReserved(0, 1, false);
  EXPECT_FALSE(progress_.AnyReserved(0));
}

}  // namespace
}  // namespace luwu::client
