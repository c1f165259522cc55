#include "common/doctor/host_checks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace luwu::doctor {
namespace {

using transport::VerbsUse;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr HostNeeds kDaemon = {.daemon = true, .budget_bytes = 4 * kGiB};
constexpr HostNeeds kTrainer = {};

Status NoLibrary() { return Error(ErrorCode::kUnsupported, "this host has no libibverbs"); }
Status PortDown() { return Error(ErrorCode::kUnavailable, "port 1 is not active"); }

// A host on which nothing is wrong.
HostFacts Healthy() {
  HostFacts facts = {.rdma = {VerbsUse::kAuto, std::string("mlx5_0 port 1")}};
  facts.files_soft = 65536;
  facts.files_hard = 65536;
  facts.huge_pages = "madvise";
  facts.shared_huge_pages = "advise";
  facts.clock_source = "tsc";
  facts.map_count_max = 65530;
  facts.memory_bytes = 64 * kGiB;
  return facts;
}

Finding Of(Topic topic, const HostFacts& facts, const HostNeeds& needs = kDaemon) {
  const Findings findings = CheckHost(facts, needs);
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& finding) { return finding.topic == topic; });
  if (found != findings.end()) return *found;
  ADD_FAILURE() << "no finding about " << NameOf(topic);
  return {};
}

Severity SeverityOf(Topic topic, const HostFacts& facts, const HostNeeds& needs = kDaemon) {
  return Of(topic, facts, needs).severity;
}

TEST(HostChecks, AHealthyHostHasNothingButOk) {
  for (const HostNeeds& needs : {kDaemon, kTrainer}) {
    for (const Finding& finding : CheckHost(Healthy(), needs)) {
      EXPECT_EQ(finding.severity, Severity::kOk) << NameOf(finding.topic) << finding.summary;
      EXPECT_TRUE(finding.hint.empty());
    }
  }
}

TEST(HostChecks, MemlockIsComparedWithTheBudgetOfADaemon) {
  HostFacts facts = Healthy();
  facts.memlock_bytes = 4 * kGiB;
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts), Severity::kOk);
  facts.memlock_bytes = 4 * kGiB - 1;
  const Finding finding = Of(Topic::kMemlock, facts);
  EXPECT_EQ(finding.severity, Severity::kErr);
  EXPECT_NE(finding.summary.find("4.00 GiB"), std::string::npos) << finding.summary;
  EXPECT_NE(finding.hint.find("LimitMEMLOCK"), std::string::npos) << finding.hint;
}

TEST(HostChecks, MemlockDoesNotHoldForThePrivileged) {
  HostFacts facts = Healthy();
  facts.memlock_bytes = 64 << 10;
  facts.may_lock_all = true;
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts), Severity::kOk);
}

TEST(HostChecks, LowMemlockIsAnErrorWhereRdmaIsUsedOnly) {
  HostFacts facts = Healthy();
  facts.memlock_bytes = 8 * kMiB;
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts, kTrainer), Severity::kErr);
  facts.rdma = {VerbsUse::kAuto, NoLibrary()};
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts), Severity::kWarn);
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts, kTrainer), Severity::kOk);
  facts.rdma = {VerbsUse::kOn, NoLibrary()};
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts), Severity::kErr);
  facts.rdma = {VerbsUse::kOff, NoLibrary()};
  EXPECT_EQ(SeverityOf(Topic::kMemlock, facts), Severity::kOk);
}

TEST(HostChecks, HugePages) {
  HostFacts facts = Healthy();
  facts.huge_pages = "always";
  EXPECT_EQ(SeverityOf(Topic::kHugePages, facts), Severity::kOk);
  for (const char* setting : {"never", ""}) {
    facts.huge_pages = setting;
    EXPECT_EQ(SeverityOf(Topic::kHugePages, facts), Severity::kWarn) << setting;
  }
}

TEST(HostChecks, SharedHugePages) {
  HostFacts facts = Healthy();
  for (const char* setting : {"always", "within_size", "force"}) {
    facts.shared_huge_pages = setting;
    EXPECT_EQ(SeverityOf(Topic::kSharedHugePages, facts), Severity::kOk) << setting;
  }
  for (const char* setting : {"never", "deny", ""}) {
    facts.shared_huge_pages = setting;
    EXPECT_EQ(SeverityOf(Topic::kSharedHugePages, facts), Severity::kWarn) << setting;
  }
}

TEST(HostChecks, ClockSource) {
  HostFacts facts = Healthy();
  for (const char* source : {"kvm-clock", "arch_sys_counter", ""}) {
    facts.clock_source = source;
    EXPECT_EQ(SeverityOf(Topic::kClockSource, facts), Severity::kOk) << source;
  }
  for (const char* source : {"hpet", "acpi_pm", "jiffies"}) {
    facts.clock_source = source;
    EXPECT_EQ(SeverityOf(Topic::kClockSource, facts), Severity::kWarn) << source;
  }
}

TEST(HostChecks, ADaemonRaisesItsFileLimitAndATrainerDoesNot) {
  HostFacts facts = Healthy();
  facts.files_soft = 255;
  EXPECT_EQ(SeverityOf(Topic::kOpenFiles, facts, kDaemon), Severity::kOk);
  EXPECT_EQ(SeverityOf(Topic::kOpenFiles, facts, kTrainer), Severity::kErr);
  facts.files_soft = 256;
  EXPECT_EQ(SeverityOf(Topic::kOpenFiles, facts, kTrainer), Severity::kWarn);
  facts.files_soft = 1024;
  EXPECT_EQ(SeverityOf(Topic::kOpenFiles, facts, kTrainer), Severity::kOk);
  facts.files_hard = 1024;
  EXPECT_EQ(SeverityOf(Topic::kOpenFiles, facts, kDaemon), Severity::kWarn);
  facts.files_hard = 1023;
  EXPECT_EQ(SeverityOf(Topic::kOpenFiles, facts, kDaemon), Severity::kErr);
}

TEST(HostChecks, MapCount) {
  HostFacts facts = Healthy();
  facts.map_count_max = 65529;
  EXPECT_EQ(SeverityOf(Topic::kMapCount, facts), Severity::kWarn);
  facts.map_count_max = 0;  // not told
  EXPECT_EQ(SeverityOf(Topic::kMapCount, facts), Severity::kOk);
}

TEST(HostChecks, ABudgetThatTheHostDoesNotHave) {
  HostFacts facts = Healthy();
  facts.memory_bytes = 4 * kGiB - 1;
  EXPECT_EQ(SeverityOf(Topic::kMemoryBudget, facts), Severity::kErr);
  facts.memory_bytes = 4 * kGiB;
  EXPECT_EQ(SeverityOf(Topic::kMemoryBudget, facts), Severity::kWarn);
  facts.memory_bytes = 5 * kGiB;
  EXPECT_EQ(SeverityOf(Topic::kMemoryBudget, facts), Severity::kOk);
}

TEST(HostChecks, RdmaThatIsAskedForAndNotThereIsAnError) {
  HostFacts facts = Healthy();
  facts.rdma = {VerbsUse::kAuto, NoLibrary()};
  EXPECT_EQ(SeverityOf(Topic::kRdma, facts), Severity::kOk);
  facts.rdma = {VerbsUse::kAuto, PortDown()};
  EXPECT_EQ(SeverityOf(Topic::kRdma, facts), Severity::kWarn);
  for (const Status& status : {NoLibrary(), PortDown()}) {
    facts.rdma = {VerbsUse::kOn, status};
    const Finding finding = Of(Topic::kRdma, facts);
    EXPECT_EQ(finding.severity, Severity::kErr);
    EXPECT_EQ(finding.summary, MessageOf(status));
  }
  facts.rdma = {VerbsUse::kOff, NoLibrary()};
  EXPECT_EQ(SeverityOf(Topic::kRdma, facts), Severity::kOk);
}

TEST(HostFacts, TheChosenWordIsInBrackets) {
  EXPECT_EQ(ChosenWord("always [madvise] never"), "madvise");
  EXPECT_EQ(ChosenWord("[always] madvise never"), "always");
  for (const char* text : {"", "never", "[never", "never]", "]["}) EXPECT_EQ(ChosenWord(text), "");
}

TEST(HostFacts, OfThisHostAreThere) {
  const HostFacts facts = GatherHostFacts({.use = VerbsUse::kOff});
  EXPECT_GT(facts.files_hard, 0U);
  EXPECT_GE(facts.files_hard, facts.files_soft);
  EXPECT_GT(facts.memory_bytes, 0U);
  EXPECT_FALSE(facts.rdma.usable());
}

}  // namespace
}  // namespace luwu::doctor
