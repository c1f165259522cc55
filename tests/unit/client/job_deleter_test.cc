// Deleting a job on all nodes of a cluster.
#include "client/src/job_deleter.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/unit/client/fake_control.h"

namespace luwu::client {
namespace {

class JobDeleterTest : public ::testing::Test {
 protected:
  // Three nodes; the first serves no shards, the second leads.
  void SetUp() override {
    front_.weight = 0;
    const std::vector<Node> nodes = {front_.node(), lead_.node(), other_.node()};
    for (FakeControl* node : {&front_, &lead_, &other_}) node->nodes = nodes;
    front_.on_delete = [](const auto&) { return Error(ErrorCode::kInternal, "never asked"); };
  }
  Status Delete(bool force = false) {
    return DeleteJob({.endpoints = {front_.node().control_address},
                      .job = "gpt",
                      .force = force,
                      .timeout_ms = 10'000});
  }
  static auto Answer(Status status) {
    return [status](const v1::DeleteJobRequest&) { return status; };
  }

  FakeControl front_{"front"};
  FakeControl lead_{"lead"};
  FakeControl other_{"other"};
};

const Status& Absent() {
  static const Status status = Error(ErrorCode::kNotFound, "no job gpt");
  return status;
}

TEST_F(JobDeleterTest, AsksEveryNodeThatServesShardsForAnyEpoch) {
  std::atomic<int> asked{0};
  for (FakeControl* node : {&lead_, &other_}) {
    node->on_delete = [&](const v1::DeleteJobRequest& request) {
      EXPECT_EQ(request.job(), "gpt");
      EXPECT_EQ(request.epoch(), 0u);
      EXPECT_TRUE(request.force());
      ++asked;
      return OkStatus();
    };
  }
  EXPECT_TRUE(Delete(true).ok());
  EXPECT_EQ(asked, 2);
}

TEST_F(JobDeleterTest, WhatTheLeadRefusesIsLeftWhole) {
  lead_.on_delete = Answer(Error(ErrorCode::kState, "job gpt has 2 open sessions"));
  bool asked = false;
  other_.on_delete = [&](const auto&) {
    asked = true;
    return OkStatus();
  };
  const Status status = Delete();
  EXPECT_EQ(CodeOf(status), ErrorCode::kState);
  EXPECT_NE(MessageOf(status).find("node lead"), std::string::npos) << MessageOf(status);
  EXPECT_FALSE(asked);
  EXPECT_EQ(CodeOf(Delete(true)), ErrorCode::kState);
  EXPECT_TRUE(asked) << "force goes past a lead that fails";
}

TEST_F(JobDeleterTest, AnInterruptedDeletionCanBeRepeated) {
  other_.on_delete = Answer(Error(ErrorCode::kState, "job gpt is being created"));
  const Status status = Delete();
  EXPECT_EQ(CodeOf(status), ErrorCode::kState);
  EXPECT_NE(MessageOf(status).find("node other"), std::string::npos) << MessageOf(status);
  lead_.on_delete = Answer(Absent());
  other_.on_delete = Answer(OkStatus());
  EXPECT_TRUE(Delete().ok());
}

TEST_F(JobDeleterTest, AJobThatNoNodeHasIsNotFound) {
  lead_.on_delete = other_.on_delete = Answer(Absent());
  const Status status = Delete();
  EXPECT_EQ(CodeOf(status), ErrorCode::kNotFound);
  EXPECT_NE(MessageOf(status).find("'gpt'"), std::string::npos) << MessageOf(status);
}

TEST_F(JobDeleterTest, ANodeThatDoesNotAnswerIsNamed) {
  other_.Stop();
  const Status status = Delete();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(MessageOf(status).find("node other"), std::string::npos) << MessageOf(status);
}

}  // namespace
}  // namespace luwu::client
