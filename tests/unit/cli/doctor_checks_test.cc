#include "client/cli/doctor_checks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "client/cli/doctor.h"

namespace luwu::cli {
namespace {

using doctor::Severity;

constexpr int64_t kNoonUs = 1'700'000'000'000'000;

NodeFacts Node(const std::string& name) {
  return {.name = name,
          .address = name + ":7070",
          .diagnosis = Diagnosis{name, "1.0", 0xabc, {{name, "MEMLOCK", Severity::kOk, "", ""}}},
          .data_address = name + ":7071",
          .clock = ClockReading{kNoonUs, kNoonUs + 50, kNoonUs + 100}};
}

const DoctorRow& Find(const DoctorRows& rows, const std::string& where, const std::string& name) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const DoctorRow& row) {
    return row.where == where && row.name == name;
  });
  if (found != rows.end()) return *found;
  ADD_FAILURE() << "no row " << where << " " << name;
  static const DoctorRow none;
  return none;
}

TEST(DoctorChecks, AHealthyCluster) {
  const DoctorRows rows = CheckCluster({Node("a"), Node("b")});
  EXPECT_EQ(WorstOf(rows), Severity::kOk);
  for (const char* name : {"NODE", "DATA_REACH", "MEMLOCK"}) {
    Find(rows, "a", name);
    Find(rows, "b", name);
  }
  for (const char* name : {"NODE_LIST", "VERSION", "CLOCK"}) Find(rows, "cluster", name);
  EXPECT_EQ(rows.size(), 9U);
}

TEST(DoctorChecks, ADeadNodeIsNamedAndTheOthersAreComparedStill) {
  NodeFacts dead = Node("b");
  dead.diagnosis = Error(ErrorCode::kUnavailable, "Socket closed");
  dead.clock.reset();
  dead.data_reach = Error(ErrorCode::kUnavailable, "b:7071: Connection refused");
  const DoctorRows rows = CheckCluster({Node("a"), dead});
  EXPECT_EQ(Find(rows, "b", "NODE").severity, Severity::kErr);
  EXPECT_EQ(Find(rows, "b", "DATA_REACH").severity, Severity::kErr);
  EXPECT_EQ(Find(rows, "a", "NODE").severity, Severity::kOk);
  EXPECT_EQ(Find(rows, "cluster", "NODE_LIST").severity, Severity::kOk);
}

TEST(DoctorChecks, NobodyAnswers) {
  NodeFacts dead = {.name = "",
                    .address = "10.0.0.1:7070",
                    .diagnosis = Error(ErrorCode::kDeadline, "Deadline Exceeded")};
  const DoctorRows rows = CheckCluster({dead});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].where, "10.0.0.1:7070");
  EXPECT_EQ(rows[0].name, "NODE");
  EXPECT_EQ(rows[0].severity, Severity::kErr);
}

TEST(DoctorChecks, AnotherDaemonAtTheAddress) {
  NodeFacts node = Node("a");
  node.diagnosis->node = "c";
  EXPECT_EQ(Find(CheckCluster({node}), "a", "NODE").severity, Severity::kErr);
}

TEST(DoctorChecks, DifferentNodeListsAreAnErrorAndSayWhoHasWhich) {
  NodeFacts other = Node("b");
  other.diagnosis->nodes_fingerprint = 0xdef;
  const DoctorRow row = Find(CheckCluster({Node("a"), other, Node("c")}), "cluster", "NODE_LIST");
  EXPECT_EQ(row.severity, Severity::kErr);
  EXPECT_NE(row.summary.find("0abc at a, c"), std::string::npos) << row.summary;
  EXPECT_NE(row.summary.find("0def at b"), std::string::npos) << row.summary;
}

TEST(DoctorChecks, DifferentVersionsAreAWarning) {
  NodeFacts other = Node("b");
  other.diagnosis->version = "1.1";
  EXPECT_EQ(Find(CheckCluster({Node("a"), other}), "cluster", "VERSION").severity, Severity::kWarn);
}

DoctorRow Clocks(int64_t a_us, int64_t b_us) {
  NodeFacts a = Node("a");
  NodeFacts b = Node("b");
  a.clock->node_us = kNoonUs + a_us;
  b.clock->node_us = kNoonUs + b_us;
  return Find(CheckCluster({a, b}), "cluster", "CLOCK");
}

TEST(DoctorChecks, ClocksMayDifferByASecondAndByWhatTheCallTook) {
  EXPECT_EQ(Clocks(1'000'100, 0).severity, Severity::kOk);
  EXPECT_EQ(Clocks(1'000'101, 0).severity, Severity::kWarn);
  EXPECT_EQ(Clocks(0, -1'000'000).severity, Severity::kOk);
  EXPECT_EQ(Clocks(0, -1'000'001).severity, Severity::kWarn);
}

TEST(DoctorChecks, TheTwoClocksThatAreFarthestApartAreNamed) {
  const DoctorRow row = Clocks(800'100, -800'000);
  EXPECT_EQ(row.severity, Severity::kWarn);
  EXPECT_EQ(row.summary, "a is 1.6 s ahead of b");
  EXPECT_EQ(Clocks(5'000'100, 50).summary, "a is 5.0 s ahead of this host");
}

TEST(DoctorReport, TextAndJsonHaveEveryFinding) {
  const DoctorRows rows = {{"here", "MEMLOCK", Severity::kOk, "unlimited", ""},
                           {"node0", "NODE", Severity::kErr, "it\ndoes not", "start it"}};
  const std::string text = DoctorText(rows);
  EXPECT_EQ(text.find("2 checks, 1 ERR, 0 WARN\n"), 0U) << text;
  EXPECT_NE(text.find("unlimited"), std::string::npos);
  EXPECT_NE(text.find("fix: start it"), std::string::npos);
  EXPECT_EQ(text.find("it\ndoes"), std::string::npos) << "a daemon's text must not break lines";
  const auto json = DoctorJson(rows);
  EXPECT_EQ(json["overall"], "SEVERITY_ERR");
  ASSERT_EQ(json["findings"].size(), 2U);
  EXPECT_EQ(json["findings"][1]["where"], "node0");
  EXPECT_EQ(json["findings"][1]["name"], "NODE");
  EXPECT_EQ(json["findings"][1]["severity"], "SEVERITY_ERR");
  EXPECT_EQ(json["findings"][1]["hint"], "start it");
}

}  // namespace
}  // namespace luwu::cli
