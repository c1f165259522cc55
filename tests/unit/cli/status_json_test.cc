#include "common/rpc/status_json.h"

#include <gtest/gtest.h>

namespace luwu::rpc {
namespace {

v1::DaemonStatus ExampleStatus() {
  v1::DaemonStatus status;
  status.set_node("node0");
  status.set_overall(v1::SEVERITY_WARN);
  v1::Check* check = status.add_checks();
  check->set_name("WORKER_LOST");
  check->set_severity(v1::SEVERITY_WARN);
  v1::JobStatus* job = status.add_jobs();
  job->set_name("gpt");
  job->set_epoch(UINT64_MAX - 1);
  job->set_update_seconds(0.25);
  job->add_workers()->set_rank(3);
  return status;
}

// Every field of the contract by name, at whatever value: nothing may be missing from the output.
void ExpectAllFields(const nlohmann::ordered_json& json,
                     const google::protobuf::Descriptor* descriptor) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    EXPECT_TRUE(json.contains(descriptor->field(i)->name()))
        << descriptor->full_name() << "." << descriptor->field(i)->name();
  }
  EXPECT_EQ(json.size(), static_cast<size_t>(descriptor->field_count()));
}

TEST(StatusJson, HasEveryFieldOfTheProtoUnderItsName) {
  const auto json = MessageJson(ExampleStatus());
  ExpectAllFields(json, v1::DaemonStatus::descriptor());
  ExpectAllFields(json["jobs"][0], v1::JobStatus::descriptor());
  ExpectAllFields(json["jobs"][0]["workers"][0], v1::WorkerStatus::descriptor());
  ExpectAllFields(json["checks"][0], v1::Check::descriptor());
}

TEST(StatusJson, ValuesKeepTheirTypes) {
  const auto json = MessageJson(ExampleStatus());
  EXPECT_EQ(json["overall"], "SEVERITY_WARN");
  EXPECT_EQ(json["jobs"][0]["epoch"], UINT64_MAX - 1);
  EXPECT_EQ(json["jobs"][0]["update_seconds"], 0.25);
  EXPECT_EQ(json["jobs"][0]["workers"][0]["rank"], 3);
  EXPECT_EQ(json["uptime_ms"], 0);
  EXPECT_NE(JsonText(json, -1).find("\"epoch\":18446744073709551614"), std::string::npos);
}

TEST(StatusJson, NodeThatDoesNotAnswerIsAnEntryWithItsError) {
  const std::vector<NodeStatus> nodes = {
      {"node0", "127.0.0.1:1", ExampleStatus()},
      {"node1", "127.0.0.1:2", Error(ErrorCode::kUnavailable, "connection refused")}};
  EXPECT_EQ(OverallSeverity(nodes), v1::SEVERITY_ERR);
  const auto json = StatusJson(nodes);
  EXPECT_EQ(json["overall"], "SEVERITY_ERR");
  EXPECT_TRUE(json["nodes"][0]["error"].is_null());
  EXPECT_EQ(json["nodes"][0]["status"]["node"], "node0");
  EXPECT_TRUE(json["nodes"][1]["status"].is_null());
  EXPECT_EQ(json["nodes"][1]["error"], "unavailable: connection refused");
  EXPECT_EQ(json["nodes"][1]["name"], "node1");
}

TEST(StatusJson, OverallIsTheWorstNode) {
  EXPECT_EQ(OverallSeverity({}), v1::SEVERITY_OK);
  EXPECT_EQ(OverallSeverity({{"node0", "a", ExampleStatus()}}), v1::SEVERITY_WARN);
}

TEST(StatusJson, BytesThatAreNotTextStayJson) {
  const std::string text = JsonText({{"name", "a\xFF"}}, -1);
  EXPECT_FALSE(nlohmann::json::parse(text, nullptr, false).is_discarded());
}

}  // namespace
}  // namespace luwu::rpc
