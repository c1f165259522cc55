#include "server/service/doctor_checks.h"

#include <gtest/gtest.h>

namespace luwu::doctor {
namespace {

StorageFacts Healthy() {
  return {.path = "/data",
          .direct = true,
          .budget_bytes = 1000,
          .used_bytes = 400,
          .free_bytes = 600,
          .full = "",
          .failed = "",
          .damaged = ""};
}

Severity Of(Topic topic, const StorageFacts& facts) {
  for (const Finding& finding : CheckStorage(facts)) {
    if (finding.topic == topic) return finding.severity;
  }
  ADD_FAILURE() << "no finding about " << NameOf(topic);
  return Severity::kOk;
}

TEST(StorageChecks, HealthyStorage) {
  for (const Finding& finding : CheckStorage(Healthy())) {
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.summary;
  }
}

TEST(StorageChecks, NoDirectIo) {
  StorageFacts facts = Healthy();
  facts.direct = false;
  EXPECT_EQ(Of(Topic::kStorageDirect, facts), Severity::kWarn);
}

TEST(StorageChecks, TheUnusedPartOfTheBudgetMustBeFree) {
  StorageFacts facts = Healthy();
  facts.free_bytes = 570;  // 5 % less than 600
  EXPECT_EQ(Of(Topic::kStorageSpace, facts), Severity::kOk);
  facts.free_bytes = 569;
  EXPECT_EQ(Of(Topic::kStorageSpace, facts), Severity::kWarn);
  facts.used_bytes = 1200;  // more than a budget that was lowered
  EXPECT_EQ(Of(Topic::kStorageSpace, facts), Severity::kOk);
  facts.full = "4 KiB for the log";
  EXPECT_EQ(Of(Topic::kStorageSpace, facts), Severity::kErr);
}

TEST(StorageChecks, FailedAndDamaged) {
  StorageFacts facts = Healthy();
  facts.damaged = "extent 7";
  EXPECT_EQ(Of(Topic::kStorageWrites, facts), Severity::kErr);
  facts = Healthy();
  facts.failed = "Input/output error";
  EXPECT_EQ(Of(Topic::kStorageWrites, facts), Severity::kErr);
}

PeerFacts Peer() {
  return {.name = "node1",
          .control_address = "10.0.0.2:7070",
          .answered = std::string("node1"),
          .data_address = "10.0.0.2:7071"};
}

TEST(PeerChecks, APeerThatAnswers) {
  const Findings findings = CheckPeers({Peer()});
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].topic, Topic::kPeerControl);
  EXPECT_EQ(findings[0].severity, Severity::kOk);
  EXPECT_EQ(findings[1].topic, Topic::kPeerData);
  EXPECT_EQ(findings[1].severity, Severity::kOk);
}

TEST(PeerChecks, APeerThatIsDownIsNamed) {
  PeerFacts peer = Peer();
  peer.answered = Error(ErrorCode::kUnavailable, "cannot connect");
  peer.data = Error(ErrorCode::kUnavailable, "Connection refused");
  for (const Finding& finding : CheckPeers({peer})) {
    EXPECT_EQ(finding.severity, Severity::kErr);
    EXPECT_NE(finding.summary.find("node1 at 10.0.0.2"), std::string::npos) << finding.summary;
  }
}

TEST(PeerChecks, AnotherDaemonAtTheAddress) {
  PeerFacts peer = Peer();
  peer.answered = std::string("node7");
  const Finding finding = CheckPeers({peer}).front();
  EXPECT_EQ(finding.severity, Severity::kErr);
  EXPECT_NE(finding.summary.find("node7"), std::string::npos) << finding.summary;
}

TEST(PeerChecks, ANodeThatServesNoShardsHasNoDataPort) {
  PeerFacts peer = Peer();
  peer.data_address = "";
  EXPECT_EQ(CheckPeers({peer}).size(), 1U);
}

}  // namespace
}  // namespace luwu::doctor
