// What shows only when all nodes are looked at together.
#include "common/rpc/cluster_checks.h"

#include <gtest/gtest.h>

namespace luwu::rpc {
namespace {

NodeStatus Node(const std::string& name, const std::string& job_state, bool serves_shards = true) {
  v1::DaemonStatus status;
  status.set_node(name);
  status.set_overall(v1::SEVERITY_OK);
  if (!job_state.empty()) {
    v1::JobStatus* job = status.add_jobs();
    job->set_name("gpt");
    job->set_state(job_state);
  }
  return {name, name + ":1", status, serves_shards};
}

TEST(ClusterChecks, JobThatOneNodeHasLostIsAnErrorThatNamesIt) {
  std::vector<NodeStatus> nodes = {Node("n0", "training"), Node("n1", ""), Node("n2", "training")};
  AddClusterChecks(&nodes);
  EXPECT_EQ(OverallSeverity(nodes), v1::SEVERITY_ERR);
  ASSERT_EQ(nodes[0].status->checks_size(), 1);
  EXPECT_EQ(nodes[2].status->checks_size(), 0);  // said once
  const v1::Check& check = nodes[0].status->checks(0);
  EXPECT_EQ(check.name(), "JOB_PART_LOST");
  EXPECT_NE(check.summary().find("gpt"), std::string::npos);
  EXPECT_NE(check.summary().find("node n1 "), std::string::npos) << check.summary();
  EXPECT_NE(check.hint(), "");
}

TEST(ClusterChecks, NothingIsSaidWhereNothingIsWrong) {
  const std::vector<std::vector<NodeStatus>> fine = {
      {Node("n0", "training"), Node("n1", "training")},
      {Node("n0", "training"), Node("gpu", "", false)},  // serves no shards
      {Node("n0", "loading"), Node("n1", "")},           // is being made
      {Node("n0", "lost"), Node("n1", "")},              // has a check of its own
      {Node("n0", "training"), {"n1", "n1:1", Error(ErrorCode::kDeadline, "down"), true}},
  };
  for (std::vector<NodeStatus> nodes : fine) {
    AddClusterChecks(&nodes);
    for (const NodeStatus& node : nodes) {
      if (!node.status.ok()) continue;
      EXPECT_EQ(node.status->checks_size(), 0);
    }
  }
}

}  // namespace
}  // namespace luwu::rpc
