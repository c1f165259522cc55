// Full disks, failed writes, failed syncs and failed reads, at each place where the storage meets
// the device.
#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "common/base/failpoint.h"
#include "tests/unit/persist/fault_machine.h"
#include "tests/unit/persist/storage_model.h"

namespace luwu::persist {
namespace {

using fakes::FakeDisk;
using fakes::FaultFileSystem;
using rocksdb::IOStatus;

const std::vector<uint64_t> kShards = {300, 200'000};
constexpr Point kFirst{.step = 1, .epoch = 1};

bool IsIn(const std::string& name, const char* folder) {
  return name.find(std::string("/") + folder + "/") != std::string::npos;
}

class Faults : public testing::Test {
 protected:
  void Start(Engine engine) {
    job_.reset();
    node_.reset();
    machine_ = std::make_unique<FaultMachine>(engine);
    Open();
    auto job = node_->CreateJob(Record("job"), 0);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *job;
    const Status committed = CommitStep(job_.get(), kShards, 1);
    ASSERT_TRUE(committed.ok()) << committed;
  }
  void Open() {
    auto node = machine_->Open();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = std::move(*node);
  }
  void Reopen() {
    job_.reset();
    node_.reset();
    Open();
    auto job = node_->OpenJob("job");
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *job;
  }
  // `operation` waits while `set_full(true)`, reads go on, and it succeeds by itself afterwards.
  void WaitsForSpace(const std::function<void(bool)>& set_full,
                     const std::function<Status()>& operation) {
    set_full(true);
    std::future<Status> result = std::async(std::launch::async, operation);
    ASSERT_TRUE(Eventually([&] { return node_->Snapshot().full.has_value(); }));
    EXPECT_GE(node_->Snapshot().waiting_writes, 1u);
    const Status read = CheckPoint(job_.get(), kFirst, kShards);
    EXPECT_TRUE(read.ok()) << read;
    EXPECT_EQ(result.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    set_full(false);
    const Status status = result.get();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Eventually([&] { return !node_->Snapshot().full.has_value(); }));
    EXPECT_EQ(node_->Snapshot().failed, "");
  }
  void SetDiskFull(FakeDisk::Op op, bool full) {
    machine_->disk()->set_fault(
        full ? [op](FakeDisk::Op at, const std::string&) { return at == op ? ENOSPC : 0; }
             : FakeDisk::Fault());
  }
  void SetRocksFull(const char* folder, bool full) {
    machine_->files()->set_fault(
        full ? [folder](FaultFileSystem::Op op, const std::string& name) {
          const bool writes = op == FaultFileSystem::Op::kAppend ||
                              op == FaultFileSystem::Op::kCreate;
          return writes && IsIn(name, folder) ? IOStatus::NoSpace() : IOStatus::OK();
        } : FaultFileSystem::Fault());
  }

  std::unique_ptr<FaultMachine> machine_;
  std::unique_ptr<NodeStorage> node_;
  std::shared_ptr<JobStorage> job_;
};

TEST_F(Faults, AWriteWaitsForAFullDiskAtAllocationAndAtTheWrite) {
  for (const FakeDisk::Op op : {FakeDisk::Op::kAllocate, FakeDisk::Op::kWrite}) {
    Start(Engine::kExtents);
    constexpr uint64_t kBig = 70 * kMiB;  // more than the file has left
    WaitsForSpace([&](bool full) { SetDiskFull(op, full); },
                  [&] { return WriteStep(job_.get(), 1, 2, kBig).status(); });
    const Status status = CommitStep(job_.get(), kShards, 2);
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Bug: a write that waited asked the file system for more, whatever had been given back meanwhile.
TEST_F(Faults, ADeletedCheckpointMakesRoomForAWriteThatWaits) {
  Start(Engine::kExtents);
  const std::vector<uint64_t> big = {300, 70 * kMiB};
  ASSERT_TRUE(CommitStep(job_.get(), big, 2).ok());
  ASSERT_TRUE(job_->CreateCheckpoint({"c", {.step = 2, .epoch = 1}, 1}).ok());
  ASSERT_TRUE(CommitStep(job_.get(), big, 3).ok());
  job_->Confirm(3);
  SetDiskFull(FakeDisk::Op::kAllocate, true);
  std::future<Status> result =
      std::async(std::launch::async, [&] { return WriteStep(job_.get(), 1, 4, big[1]).status(); });
  ASSERT_TRUE(Eventually([&] { return node_->Snapshot().full.has_value(); }));
  ASSERT_TRUE(job_->DeleteCheckpoint("c").ok());
  const bool ended = Eventually([&] { return !node_->Snapshot().full.has_value(); });
  EXPECT_TRUE(ended) << node_->Snapshot().full.value_or("");
  SetDiskFull(FakeDisk::Op::kAllocate, false);
  const Status status = result.get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Faults, EveryChangeOfTheCatalogueWaitsForAFullDisk) {
  Start(Engine::kExtents);
  const auto set_full = [&](bool full) { SetRocksFull("catalogue", full); };
  const Status second = CommitStep(job_.get(), kShards, 2);
  ASSERT_TRUE(second.ok()) << second;
  WaitsForSpace(set_full, [&] { return WriteStep(job_.get(), 0, 3, 300).status(); });
  const ShardEntry entry = *WriteStep(job_.get(), 1, 3, kShards[1]);
  WaitsForSpace(set_full,
                [&] { return job_->Commit({.step = 3, .epoch = 1}, {entry}, SyncLevel::kSynced); });
  WaitsForSpace(set_full, [&] { return job_->CreateCheckpoint({"c", kFirst, 1}); });
  WaitsForSpace(set_full, [&] {
    job_->Confirm(3);
    return job_->Points().size() == 1 ? OkStatus() : Error(ErrorCode::kInternal, "not confirmed");
  });
  WaitsForSpace(set_full, [&] { return job_->RollBack({.step = 3, .epoch = 1}, 2); });
  const Status third = CommitStep(job_.get(), kShards, 4);
  ASSERT_TRUE(third.ok()) << third;
  Reopen();
  EXPECT_TRUE(CheckPoint(job_.get(), kFirst, kShards).ok());
  EXPECT_TRUE(CheckPoint(job_.get(), {.step = 4, .epoch = 2}, kShards).ok());
  ASSERT_TRUE(job_->DeleteCheckpoint("c").ok());
}

TEST_F(Faults, JobsCanBeMadeAgainOnceAFullDiskHasSpace) {
  Start(Engine::kExtents);
  SetRocksFull("catalogue", true);
  EXPECT_EQ(CodeOf(node_->CreateJob(Record("next"), 0).status()), ErrorCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(node_->DeleteJob("job")), ErrorCode::kResourceExhausted);
  SetRocksFull("catalogue", false);
  const Status made = node_->CreateJob(Record("next"), 0).status();
  EXPECT_TRUE(made.ok()) << made;
  EXPECT_TRUE(CheckPoint(job_.get(), kFirst, kShards).ok());
}

TEST_F(Faults, ACommitOfValuesWaitsForAFullDisk) {
  Start(Engine::kRocksdbValues);
  const ShardEntry entry = *WriteStep(job_.get(), 1, 2, kShards[1]);
  WaitsForSpace([&](bool full) { SetRocksFull("values", full); },
                [&] { return job_->Commit({.step = 2, .epoch = 1}, {entry}, SyncLevel::kSynced); });
  Reopen();
  const Status status = CheckPoint(job_.get(), {.step = 2, .epoch = 1}, kShards);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Faults, ShutdownEndsWhatWaitsForSpace) {
  Start(Engine::kExtents);
  SetDiskFull(FakeDisk::Op::kWrite, true);
  auto write = std::async(std::launch::async,
                          [&] { return WriteStep(job_.get(), 1, 2, kShards[1]).status(); });
  ASSERT_TRUE(Eventually([&] { return node_->Snapshot().waiting_writes == 1; }));
  SetRocksFull("catalogue", true);
  auto commit = std::async(std::launch::async, [&] {
    return job_->Commit({.step = 2, .epoch = 1}, {}, SyncLevel::kSynced);
  });
  ASSERT_TRUE(Eventually([&] { return node_->Snapshot().waiting_writes == 2; }));
  node_->Shutdown();
  EXPECT_EQ(CodeOf(write.get()), ErrorCode::kCancelled);
  EXPECT_EQ(CodeOf(commit.get()), ErrorCode::kCancelled);
}

// Writes of payload that fail with EIO, as long as there are any left; PROMISED does not.
FakeDisk::Fault FailsWrites(std::atomic<int>* left) {
  return [left](FakeDisk::Op op, const std::string& path) {
    return op == FakeDisk::Op::kWrite && IsIn(path, "extents") && (*left)-- > 0 ? EIO : 0;
  };
}

TEST_F(Faults, AWriteThatFailsIsMadeAtAnotherPlaceAndTheJobGoesOn) {
  Start(Engine::kExtents);
  std::atomic<int> left{2};
  machine_->disk()->set_fault(FailsWrites(&left));
  const StatusOr<ShardEntry> written = WriteStep(job_.get(), 1, 2, kShards[1]);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_LE(left, 0) << "the device has failed twice";
  const Status committed = job_->Commit({.step = 2, .epoch = 1}, {*written}, SyncLevel::kSynced);
  ASSERT_TRUE(committed.ok()) << committed;
  EXPECT_EQ(node_->Snapshot().failed, "");
  EXPECT_TRUE(node_->Snapshot().damaged.empty());
  Reopen();
  EXPECT_TRUE(CheckPoint(job_.get(), {.step = 2, .epoch = 1}, kShards).ok());
}

TEST_F(Faults, ADeviceThatFailsAtEveryPlaceIsNamedAndWritesEnd) {
  Start(Engine::kExtents);
  const uint64_t used = node_->Snapshot().used_bytes;
  std::atomic<int> left{1'000};
  machine_->disk()->set_fault(FailsWrites(&left));
  const Status failed = WriteStep(job_.get(), 1, 2, kShards[1]).status();
  EXPECT_EQ(CodeOf(failed), ErrorCode::kCorrupt);
  EXPECT_EQ(left, 997) << "three places, not more";
  for (const char* part :
       {"job 'job' shard 1", "extents/1", "Input/output", "2 other places", "device ", "tmpfs"})
    EXPECT_NE(MessageOf(failed).find(part), std::string::npos) << part << " in " << failed;
  EXPECT_EQ(node_->Snapshot().failed, MessageOf(failed));
  EXPECT_TRUE(node_->Snapshot().damaged.empty()) << "nothing that was stored is damaged";
  EXPECT_EQ(node_->Snapshot().used_bytes, used);
  machine_->disk()->set_fault({});
  EXPECT_EQ(CodeOf(CommitStep(job_.get(), kShards, 2)), ErrorCode::kCorrupt) << "until a restart";
  EXPECT_TRUE(CheckPoint(job_.get(), kFirst, kShards).ok()) << "reads go on";
  Reopen();
  EXPECT_TRUE(CommitStep(job_.get(), kShards, 2).ok());
}

TEST_F(Faults, AReadThatFailsOnceIsMadeAgain) {
  Start(Engine::kExtents);
  std::atomic<int> reads{0};
  machine_->disk()->set_fault([&](FakeDisk::Op op, const std::string&) {
    return op == FakeDisk::Op::kRead && ++reads == 1 ? EIO : 0;
  });
  const Status status = CheckPoint(job_.get(), kFirst, kShards);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(reads, 2);
  EXPECT_TRUE(node_->Snapshot().damaged.empty());
  machine_->disk()->set_fault({});
}

TEST_F(Faults, AFailedReadNamesJobShardFileAndOffset) {
  Start(Engine::kExtents);
  machine_->disk()->set_fault(
      [](FakeDisk::Op op, const std::string&) { return op == FakeDisk::Op::kRead ? EIO : 0; });
  const std::vector<ShardEntry> entries = *job_->EntriesAt(kFirst);
  const Status failed = Read(job_.get(), entries[1]).status();
  EXPECT_EQ(CodeOf(failed), ErrorCode::kCorrupt);
  for (const char* part : {"job 'job'", "shard 1", "extents/1", "at offset", "Input/output"})
    EXPECT_NE(MessageOf(failed).find(part), std::string::npos) << part << " in " << failed;
  ASSERT_EQ(node_->Snapshot().damaged.size(), 1u);
  EXPECT_TRUE(Read(job_.get(), entries[0]).ok()) << "another shard";
  machine_->disk()->set_fault({});
  EXPECT_TRUE(CheckPoint(job_.get(), kFirst, kShards).ok());
}

TEST_F(Faults, ShortTransfersAndInterruptionsAreContinued) {
  Start(Engine::kExtents);
  machine_->disk()->set_short_transfers(true);
  std::atomic<uint32_t> calls{0};
  machine_->disk()->set_fault([&](FakeDisk::Op op, const std::string&) {
    const bool transfer = op == FakeDisk::Op::kRead || op == FakeDisk::Op::kWrite;
    if (!transfer) return 0;
    const uint32_t call = ++calls;
    return call % 3 == 0 ? EINTR : call % 5 == 0 ? EAGAIN : 0;
  });
  const Status committed = CommitStep(job_.get(), kShards, 2);
  ASSERT_TRUE(committed.ok()) << committed;
  const Status status = CheckPoint(job_.get(), {.step = 2, .epoch = 1}, kShards);
  EXPECT_TRUE(status.ok()) << status;
  machine_->disk()->set_fault({});
}

// The n-th sync fails, wherever that is; nothing succeeds after it, and a restart finds a state
// that was acknowledged, or the one that was being made.
TEST_F(Faults, AfterAFailedSyncNothingSucceedsUntilARestart) {
  for (int nth = 1; nth <= 60; ++nth) {
    Start(Engine::kExtents);
    std::atomic<int> syncs{0};
    const auto fails = [&] { return ++syncs == nth; };
    machine_->disk()->set_fault([&](FakeDisk::Op op, const std::string&) {
      return op == FakeDisk::Op::kSync && fails() ? EIO : 0;
    });
    machine_->files()->set_fault([&](FaultFileSystem::Op op, const std::string& name) {
      const bool sync = op == FaultFileSystem::Op::kSync && name.ends_with(".log");
      return sync && fails() ? IOStatus::IOError("failed sync") : IOStatus::OK();
    });
    Workload workload(static_cast<uint64_t>(nth), kShards, /*logged_too=*/false);
    ASSERT_TRUE(job_->RollBack(kFirst, 1).ok() || syncs >= nth);
    ModelState state;
    state.points[1] = {kFirst, {{0, 1}, {1, 1}}};
    workload.Settle(state);
    workload.CountFrom(1);
    while (syncs < nth && workload.Step(job_.get())) {
    }
    ASSERT_NE(node_->Snapshot().failed, "") << "sync " << nth;
    for (int again = 0; again < 3; ++again) {
      EXPECT_EQ(CodeOf(WriteStep(job_.get(), 1, 900, kShards[1]).status()), ErrorCode::kCorrupt);
      EXPECT_EQ(CodeOf(job_->Commit({.step = 901, .epoch = 1}, {}, SyncLevel::kSynced)),
                ErrorCode::kCorrupt);
    }
    machine_->disk()->set_fault({});
    machine_->files()->set_fault({});
    std::mt19937_64 random(static_cast<uint64_t>(nth));
    job_.reset();
    node_.reset();
    machine_->LosePower(&random);
    Open();
    job_ = *node_->OpenJob("job");
    const std::string before = Compare(job_.get(), workload.before(), kShards);
    if (!before.empty()) {
      EXPECT_EQ(Compare(job_.get(), workload.state(), kShards), "") << before << " sync " << nth;
    }
  }
}

TEST_F(Faults, FailpointsReachTheCallers) {
  Start(Engine::kExtents);
  ASSERT_TRUE(failpoint::Configure("persist.write=error(ENOSPC)@1;persist.written=error(EIO)@1;"
                                   "persist.read=error(EIO)")
                  .ok());
  EXPECT_TRUE(WriteStep(job_.get(), 1, 2, kShards[1]).ok())
      << "waited once, failed once, and was made elsewhere";
  EXPECT_EQ(failpoint::Counts().at("persist.write"), 3u);
  EXPECT_EQ(CodeOf(CheckPoint(job_.get(), kFirst, kShards)), ErrorCode::kCorrupt);
  EXPECT_TRUE(CommitStep(job_.get(), kShards, 2).ok());
  job_->Confirm(2);
  ASSERT_TRUE(job_->CreateCheckpoint({"c", {.step = 2, .epoch = 1}, 1}).ok());
  ASSERT_TRUE(job_->RollBack({.step = 2, .epoch = 1}, 2).ok());
  const auto counts = failpoint::Counts();
  ASSERT_TRUE(failpoint::Configure("").ok());
  for (const char* name :
       {"persist.write", "persist.written", "persist.commit.before", "persist.commit.after_sync",
        "persist.commit.after", "persist.confirm", "persist.free", "persist.checkpoint",
        "persist.rollback.before", "persist.rollback.after"}) {
    EXPECT_TRUE(counts.contains(name)) << name;
  }
}

}  // namespace
}  // namespace luwu::persist
