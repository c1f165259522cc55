// What a session that has ended is told, by what the daemons say of its job.
#include "client/src/rollback_inquiry.h"

#include <array>
#include <atomic>

#include <gtest/gtest.h>

#include "client/src/node_finder.h"
#include "tests/unit/client/fake_control.h"

namespace luwu::client {
namespace {

constexpr uint64_t kEpoch = 11;
constexpr uint64_t kLineage = 5;

class RollbackInquiryTest : public ::testing::Test {
 protected:
  RollbackInquiryTest() {
    nodes_ = {controls_[0].node(), controls_[1].node()};
    JobSpec spec;
    spec.name = "gpt";
    spec.world_size = 1;
    spec.layers = {{.name = "a", .elements = 8, .tensors = {}}};
    spec.layers[0].tensors.push_back(
        {.name = "w", .shape = {8}, .offset = 0, .group = 0, .trainable = true});
    FabricOptions options;
    options.epoch = kEpoch;
    options.patience_ms = 2'000;
    fabric_ = std::make_unique<Fabric>(ModelPlan(spec, nodes_), options, 0);
    for (uint32_t node = 0; node < 2; ++node) {
      fabric_->AddNode(node, nullptr);
      rpcs_.push_back(
          std::make_unique<NodeRpc>(nodes_[node].control_address, NameOf(nodes_[node])));
      Say(node, v1::JOB_PHASE_LIVE, kEpoch);
    }
    inquiry_ = std::make_unique<RollbackInquiry>(
        fabric_.get(), &rpcs_, RollbackInquiry::Origin{.lead = 0, .lineage = kLineage});
  }

  void Say(uint32_t node, v1::JobPhase phase, uint64_t epoch, uint64_t first_step = 0,
           uint64_t lineage = kLineage) {
    controls_[node].on_describe = [=](v1::DescribeJobResponse* response) {
      response->set_phase(phase);
      response->set_epoch(epoch);
      response->set_lineage(lineage);
      response->set_first_step(first_step);
      response->set_detail("for a reason");
      return OkStatus();
    };
  }
  void SayNothing(uint32_t node, ErrorCode code) {
    controls_[node].on_describe = [=](v1::DescribeJobResponse*) { return Error(code, "no"); };
  }
  Status Explain(ErrorCode code) { return inquiry_->Explain(Error(code, "the first error")); }

  std::array<FakeControl, 2> controls_ = {FakeControl("n0"), FakeControl("n1")};
  std::vector<Node> nodes_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<std::unique_ptr<NodeRpc>> rpcs_;
  std::unique_ptr<RollbackInquiry> inquiry_;
};

TEST_F(RollbackInquiryTest, SameLineageUnderAnotherEpochIsARollbackWithItsStep) {
  Say(0, v1::JOB_PHASE_LIVE, 12, 40);
  Say(1, v1::JOB_PHASE_LIVE, 12, 40);
  for (const ErrorCode code :
       {ErrorCode::kFenced, ErrorCode::kStaleEpoch, ErrorCode::kNodeLost, ErrorCode::kNotFound}) {
    const Status told = Explain(code);
    EXPECT_EQ(CodeOf(told), ErrorCode::kRolledBack);
    EXPECT_NE(MessageOf(told).find("rolled back to step 40"), std::string::npos) << MessageOf(told);
  }
  EXPECT_EQ(inquiry_->step(), 40u);
}

TEST_F(RollbackInquiryTest, OtherErrorsAreLeftAsTheyAre) {
  Say(0, v1::JOB_PHASE_LIVE, 12, 40);
  for (const ErrorCode code :
       {ErrorCode::kDeadline, ErrorCode::kWorkerLost, ErrorCode::kInvalidArgument}) {
    EXPECT_EQ(CodeOf(Explain(code)), code);
  }
}

TEST_F(RollbackInquiryTest, JobThatGoesOnAsItWasLeavesTheErrorAlone) {
  EXPECT_EQ(MessageOf(Explain(ErrorCode::kFenced)), "the first error");
  EXPECT_FALSE(inquiry_->step().has_value());
}

TEST_F(RollbackInquiryTest, AnotherJobOfThatNameIsNoRollback) {
  Say(0, v1::JOB_PHASE_LIVE, 12, 0, kLineage + 1);
  Say(1, v1::JOB_PHASE_LIVE, 12, 0, kLineage + 1);
  EXPECT_EQ(CodeOf(Explain(ErrorCode::kStaleEpoch)), ErrorCode::kStaleEpoch);
  SayNothing(0, ErrorCode::kNotFound);
  SayNothing(1, ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(Explain(ErrorCode::kStaleEpoch)), ErrorCode::kStaleEpoch);
}

TEST_F(RollbackInquiryTest, RecoveryIsWaitedFor) {
  // The lead does not know yet that the other node was restarted.
  std::atomic<int> asked{0};
  controls_[0].on_describe = [&](v1::DescribeJobResponse* response) {
    const bool over = ++asked >= 4;
    response->set_phase(asked >= 2 && !over ? v1::JOB_PHASE_RECOVERING : v1::JOB_PHASE_LIVE);
    response->set_epoch(over ? 12 : kEpoch);
    response->set_lineage(kLineage);
    response->set_first_step(7);
    return OkStatus();
  };
  Say(1, v1::JOB_PHASE_RECOVERING, kEpoch);
  EXPECT_EQ(CodeOf(Explain(ErrorCode::kFenced)), ErrorCode::kRolledBack);
  EXPECT_EQ(inquiry_->step(), 7u);
  EXPECT_GE(asked, 4);
}

TEST_F(RollbackInquiryTest, RecoveryThatTakesTooLongIsARollbackToAStepUnknown) {
  Say(0, v1::JOB_PHASE_RECOVERING, kEpoch);
  const Status told = Explain(ErrorCode::kFenced);
  EXPECT_EQ(CodeOf(told), ErrorCode::kRolledBack);
  EXPECT_NE(MessageOf(told).find("for a reason"), std::string::npos);
  EXPECT_FALSE(inquiry_->step().has_value());
  Say(0, v1::JOB_PHASE_LIVE, 12, 3);  // later it is known
  EXPECT_EQ(CodeOf(Explain(ErrorCode::kFenced)), ErrorCode::kRolledBack);
  EXPECT_EQ(inquiry_->step(), 3u);
}

TEST_F(RollbackInquiryTest, LostJobIsToldWithItsReason) {
  Say(1, v1::JOB_PHASE_LOST, kEpoch);
  const Status told = Explain(ErrorCode::kNodeLost);
  EXPECT_EQ(CodeOf(told), ErrorCode::kJobFailed);
  EXPECT_NE(MessageOf(told).find("for a reason"), std::string::npos);
}

TEST_F(RollbackInquiryTest, LostNodeThatStaysAwayIsANodeLost) {
  controls_[1].Stop();
  EXPECT_EQ(CodeOf(Explain(ErrorCode::kNodeLost)), ErrorCode::kNodeLost);
}

}  // namespace
}  // namespace luwu::client
