// Which checks the daemon raises for which state, and when they go away again.
#include "server/service/status_snapshot.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace luwu {
namespace {

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(uint64_t ms) { now_ += Milliseconds(ms); }

 private:
  TimePoint now_ = TimePoint(std::chrono::hours(1));
};

class StatusSnapshotTest : public testing::Test {
 protected:
  StatusSnapshotTest() : collector_(MakeSources()) {
    job_.name = "gpt";
    job_.epoch = 7;
    job_.state = JobState::kTraining;
    job_.current_step = 5;
    job_.world_size = 2;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      WorkerSnapshot worker;
      worker.rank = rank;
      worker.host = "gpu-" + std::to_string(rank);
      worker.pid = 100 + rank;
      worker.lease_left_ms = 900;
      worker.last_step = 5;
      worker.pushed_bytes = 10;
      job_.workers.push_back(worker);
    }
  }

  StatusCollector::Sources MakeSources() {
    StatusCollector::Sources sources;
    sources.constants.node = "n0";
    sources.constants.memory_budget_bytes = 1000;
    sources.jobs = [this] { return std::vector<JobSnapshot>{job_}; };
    sources.absent_jobs = [this] { return absent_; };
    sources.storage = [this] { return storage_; };
    sources.memory_used_bytes = [this] { return used_; };
    sources.lease_ms = 1000;
    sources.clock = &clock_;
    sources.unix_ms = [this] { return unix_ms_; };
    return sources;
  }

  // The only check there must be, or the test fails.
  StatusCheck OnlyCheck() {
    const DaemonSnapshot snapshot = collector_.Collect();
    EXPECT_EQ(snapshot.checks.size(), 1u);
    if (snapshot.checks.empty()) return {};
    EXPECT_EQ(snapshot.overall, snapshot.checks[0].severity);
    EXPECT_NE(snapshot.checks[0].hint, "");
    const auto known =
        std::find_if(kCheckNames.begin(), kCheckNames.end(),
                     [&](const CheckName& check) { return check.name == snapshot.checks[0].name; });
    EXPECT_NE(known, kCheckNames.end()) << snapshot.checks[0].name << " is not in kCheckNames";
    if (known == kCheckNames.end()) return {};
    EXPECT_EQ(known->severity, snapshot.checks[0].severity);
    return snapshot.checks[0];
  }

  FakeClock clock_;
  uint64_t unix_ms_ = 1'700'000'000'000;
  JobSnapshot job_;
  uint64_t used_ = 0;
  std::vector<AbsentJob> absent_;
  persist::StorageSnapshot storage_;
  StatusCollector collector_;
};

TEST_F(StatusSnapshotTest, AllIsWellWithoutChecks) {
  clock_.Advance(1234);
  const DaemonSnapshot snapshot = collector_.Collect();
  EXPECT_EQ(snapshot.overall, Severity::kOk);
  EXPECT_TRUE(snapshot.checks.empty());
  EXPECT_EQ(snapshot.node, "n0");
  EXPECT_EQ(snapshot.uptime_ms, 1234u);
  EXPECT_EQ(snapshot.jobs.size(), 1u);
}

TEST_F(StatusSnapshotTest, ALostWorkerIsNamedByRankHostAndPid) {
  job_.workers[1].lease_left_ms = 0;
  const StatusCheck check = OnlyCheck();
  EXPECT_EQ(check.name, "WORKER_LOST");
  EXPECT_EQ(check.severity, Severity::kErr);
  for (const char* part : {"gpt", "rank 1", "gpu-1", "pid 101"}) {
    EXPECT_NE(check.summary.find(part), std::string::npos) << check.summary;
  }
}

TEST_F(StatusSnapshotTest, AJobThatIsRecoveringIsAWarningAndALostOneAnError) {
  absent_.resize(1);
  absent_[0].name = "old";
  absent_[0].phase = JobPhase::kRecovering;
  absent_[0].detail = "node n1";
  StatusCheck check = OnlyCheck();
  EXPECT_EQ(check.name, "JOB_RECOVERING");
  EXPECT_EQ(check.severity, Severity::kWarn);
  EXPECT_NE(check.summary.find("old"), std::string::npos);
  EXPECT_NE(check.summary.find("node n1"), std::string::npos);
  absent_[0].phase = JobPhase::kLost;
  check = OnlyCheck();
  EXPECT_EQ(check.name, "JOB_LOST");
  EXPECT_EQ(check.severity, Severity::kErr);
}

TEST_F(StatusSnapshotTest, StorageThatIsFullFailedOrDamagedIsAnError) {
  storage_.path = "/data";
  storage_.full = "4096 bytes are missing";
  EXPECT_EQ(OnlyCheck().name, "STORAGE_FULL");
  storage_.full.reset();
  storage_.failed = "fsync: Input/output error";
  EXPECT_NE(OnlyCheck().summary.find("Input/output"), std::string::npos);
  storage_.failed.clear();
  storage_.damaged = {"job gpt shard 1", "job gpt shard 2"};
  const StatusCheck check = OnlyCheck();
  EXPECT_EQ(check.name, "STORAGE_DAMAGED");
  EXPECT_EQ(check.severity, Severity::kErr);
  EXPECT_NE(check.summary.find("shard 2"), std::string::npos);
}

TEST_F(StatusSnapshotTest, AFailedJobIsAnError) {
  job_.state = JobState::kFailed;
  EXPECT_EQ(OnlyCheck().name, "JOB_FAILED");
  EXPECT_EQ(OnlyCheck().severity, Severity::kErr);
}

TEST_F(StatusSnapshotTest, MemoryIsNearlyFullAboveNineTenths) {
  used_ = 900;
  EXPECT_TRUE(collector_.Collect().checks.empty());
  used_ = 901;
  EXPECT_EQ(OnlyCheck().name, "MEMORY_NEARFULL");
  EXPECT_EQ(OnlyCheck().severity, Severity::kWarn);
}

// Bug: every job with state on disk was a warning for as long as it lived.
TEST_F(StatusSnapshotTest, AJobThatSpillsMayFillTheMemory) {
  used_ = 1000;
  job_.tiers.spilled_bytes = 1;
  EXPECT_TRUE(collector_.Collect().checks.empty());
}

TEST_F(StatusSnapshotTest, AnOpenStepWithoutProgressForLongerThanTheLeaseIsStalled) {
  collector_.Observe();
  clock_.Advance(1000);
  collector_.Observe();
  EXPECT_TRUE(collector_.Collect().checks.empty());
  clock_.Advance(1);
  EXPECT_EQ(OnlyCheck().name, "STEP_STALLED");
}

TEST_F(StatusSnapshotTest, AnyProgressEndsAStall) {
  collector_.Observe();
  clock_.Advance(1001);
  EXPECT_EQ(OnlyCheck().name, "STEP_STALLED");
  job_.workers[0].pushed_bytes += 1;
  collector_.Observe();
  EXPECT_TRUE(collector_.Collect().checks.empty());
  clock_.Advance(1001);
  EXPECT_EQ(OnlyCheck().name, "STEP_STALLED");
}

TEST_F(StatusSnapshotTest, BetweenStepsNothingIsStalled) {
  for (WorkerSnapshot& worker : job_.workers) worker.last_step = 4;
  collector_.Observe();
  clock_.Advance(5000);
  collector_.Observe();
  EXPECT_TRUE(collector_.Collect().checks.empty());
}

TEST_F(StatusSnapshotTest, AJobThatWaitsForItsFirstStepIsNotStalled) {
  job_.current_step = 0;
  for (WorkerSnapshot& worker : job_.workers) {
    worker.last_step = 0;
    worker.pushed_bytes = 0;
  }
  collector_.Observe();
  clock_.Advance(5000);
  EXPECT_TRUE(collector_.Collect().checks.empty());
}

TEST_F(StatusSnapshotTest, ARecreatedJobDoesNotInheritAStall) {
  collector_.Observe();
  clock_.Advance(1001);
  job_.epoch = 8;
  EXPECT_TRUE(collector_.Collect().checks.empty());
}

// docs/operating/storage.md promised it, and nothing warned.
TEST_F(StatusSnapshotTest, StorageIsNearlyFullAboveItsWarnPercentUntilItIsFull) {
  storage_.budget_bytes = 1000;
  storage_.used_bytes = 850;
  EXPECT_TRUE(collector_.Collect().checks.empty());
  storage_.used_bytes = 851;
  EXPECT_EQ(OnlyCheck().name, "STORAGE_NEARFULL");
  EXPECT_EQ(OnlyCheck().severity, Severity::kWarn);
  storage_.full = "4096 bytes are missing";
  EXPECT_EQ(OnlyCheck().name, "STORAGE_FULL");
}

TEST_F(StatusSnapshotTest, AStallBehindAFullDiskIsNotBlamedOnAWorker) {
  collector_.Observe();
  clock_.Advance(1001);
  EXPECT_NE(OnlyCheck().hint.find("worker"), std::string::npos);
  storage_.path = "/data/luwu";
  storage_.full = "4096 bytes are missing";
  const DaemonSnapshot snapshot = collector_.Collect();
  ASSERT_EQ(snapshot.checks.size(), 2u);
  EXPECT_EQ(snapshot.checks[0].name, "STEP_STALLED");
  EXPECT_NE(snapshot.checks[0].hint.find("/data/luwu"), std::string::npos);
  EXPECT_EQ(snapshot.checks[0].hint.find("worker"), std::string::npos);
}

// Bug: every daemon ran, and the hint was to start them all.
TEST_F(StatusSnapshotTest, AJobThatLacksMemoryIsNotWaitingForADaemon) {
  job_.workers.clear();
  absent_.emplace_back().name = "gpt";
  EXPECT_NE(OnlyCheck().hint.find("start every daemon"), std::string::npos);
  absent_[0].lacks_memory = true;
  EXPECT_EQ(OnlyCheck().name, "JOB_RECOVERING");
  EXPECT_EQ(OnlyCheck().hint.find("start every daemon"), std::string::npos);
  EXPECT_NE(OnlyCheck().hint.find("memory.budget"), std::string::npos);
}

TEST_F(StatusSnapshotTest, ACheckKeepsTheTimeAtWhichItWasFirstSeen) {
  const uint64_t start = unix_ms_;
  used_ = 950;
  collector_.Observe();
  EXPECT_EQ(OnlyCheck().since_unix_ms, start);
  unix_ms_ += 5000;
  used_ = 960;  // another summary, the same check
  collector_.Observe();
  EXPECT_EQ(OnlyCheck().since_unix_ms, start);
  used_ = 0;
  collector_.Observe();
  unix_ms_ += 5000;
  used_ = 960;
  EXPECT_EQ(OnlyCheck().since_unix_ms, start + 10000);  // gone and back; not observed yet
}

TEST_F(StatusSnapshotTest, TheLatestIsWhatWasObservedNotWhatIs) {
  EXPECT_EQ(collector_.Latest(), nullptr);
  used_ = 100;
  collector_.Observe();
  used_ = 200;
  unix_ms_ += 5000;
  ASSERT_NE(collector_.Latest(), nullptr);
  EXPECT_EQ(collector_.Latest()->memory_used_bytes, 100u);
  EXPECT_EQ(collector_.Latest()->taken_unix_ms, unix_ms_ - 5000);
  EXPECT_EQ(collector_.Latest()->started_unix_ms, unix_ms_ - 5000);
  collector_.Observe();
  EXPECT_EQ(collector_.Latest()->memory_used_bytes, 200u);
}

TEST_F(StatusSnapshotTest, TheWorstCheckIsTheOverallSeverity) {
  used_ = 1000;
  job_.workers[0].lease_left_ms = 0;
  const DaemonSnapshot snapshot = collector_.Collect();
  EXPECT_EQ(snapshot.checks.size(), 2u);
  EXPECT_EQ(snapshot.overall, Severity::kErr);
}

}  // namespace
}  // namespace luwu
