// What job_storage.h and node_storage.h promise, asked of both engines.
#include <sys/mman.h>

#include <atomic>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/failpoint.h"
#include "server/persist/node_storage.h"
#include "tests/unit/persist/storage_world.h"

namespace luwu::persist {
namespace {

// A small one for the catalogue, one with padding, one of several pieces, and the smallest there
// is.
const std::vector<uint64_t> kShards = {100, 64 * kKiB + 5, 3 * kMiB + 4096, 0, 64 * kKiB - 1};

class Storage : public testing::TestWithParam<Engine> {
 protected:
  void SetUp() override { Open(); }
  void Open() {
    job_.reset();
    node_.reset();
    StatusOr<std::unique_ptr<NodeStorage>> opened =
        NodeStorage::Open(OptionsFor(folder_.path(), GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    node_ = std::move(*opened);
  }
  void Create() {
    StatusOr<std::shared_ptr<JobStorage>> created = node_->CreateJob(Record("job"), 64 * kMiB);
    ASSERT_TRUE(created.ok()) << created.status();
    job_ = *created;
  }
  void Reopen() {
    Open();
    StatusOr<std::shared_ptr<JobStorage>> opened = node_->OpenJob("job");
    ASSERT_TRUE(opened.ok()) << opened.status();
    job_ = *opened;
  }
  void CommitStepOk(uint64_t step, SyncLevel level = SyncLevel::kSynced) {
    const Status status = CommitStep(job_.get(), kShards, step, level);
    ASSERT_TRUE(status.ok()) << status;
  }
  void ExpectPointOk(const Point& point) {
    const Status status = CheckPoint(job_.get(), point, kShards);
    EXPECT_TRUE(status.ok()) << status;
  }

  TestFolder folder_;
  std::unique_ptr<NodeStorage> node_;
  std::shared_ptr<JobStorage> job_;
};

TEST_P(Storage, GivesBackWhatWasWrittenBeforeAndAfterACommit) {
  Create();
  for (uint32_t shard = 0; shard < kShards.size(); ++shard) {
    const StatusOr<ShardEntry> entry = WriteStep(job_.get(), shard, 1, kShards[shard]);
    ASSERT_TRUE(entry.ok()) << entry.status();
    EXPECT_EQ(*Read(job_.get(), *entry), Content(shard, 1, kShards[shard]));
    job_->Discard(entry->generation);
  }
  EXPECT_EQ(node_->Snapshot().used_bytes, 0u);
  CommitStepOk(1);
  ExpectPointOk({.step = 1, .epoch = 1});
  EXPECT_EQ(node_->Snapshot().engine, GetParam());
}

TEST_P(Storage, PointsSurviveAReopenWithEveryField) {
  Create();
  std::vector<ShardEntry> changed;
  for (uint32_t shard = 0; shard < kShards.size(); ++shard)
    changed.push_back(*WriteStep(job_.get(), shard, 7, kShards[shard]));
  const Point point{
      .step = 9, .epoch = 1, .loss_scale = 0.125f, .finite_steps = 3, .skipped_steps = 2};
  ASSERT_TRUE(job_->Commit(point, changed, SyncLevel::kSynced).ok());
  Reopen();
  EXPECT_EQ(job_->record(), Record("job"));
  EXPECT_EQ(job_->Points(), std::vector<Point>{point});
  EXPECT_EQ(*job_->EntriesAt(point), changed);
  ExpectPointOk(point);
}

TEST_P(Storage, ALoggedPointSurvivesAReopenToo) {
  Create();
  CommitStepOk(1, SyncLevel::kLogged);
  Reopen();
  ExpectPointOk({.step = 1, .epoch = 1});
}

TEST_P(Storage, APointHasTheNewestOfEveryShard) {
  Create();
  CommitStepOk(1);
  const StatusOr<ShardEntry> changed = WriteStep(job_.get(), 1, 2, kShards[1]);
  ASSERT_TRUE(job_->Commit({.step = 2, .epoch = 1}, {*changed}, SyncLevel::kSynced).ok());
  for (int round = 0; round < 2; ++round) {
    const std::vector<ShardEntry> first = *job_->EntriesAt({.step = 1, .epoch = 1});
    const std::vector<ShardEntry> second = *job_->EntriesAt({.step = 2, .epoch = 1});
    ASSERT_EQ(second.size(), kShards.size());
    for (uint32_t shard = 0; shard < kShards.size(); ++shard) {
      EXPECT_EQ(first[shard].generation.step, 1u);
      EXPECT_EQ(second[shard].generation.step, shard == 1 ? 2u : 1u);
    }
    ExpectPointOk({.step = 1, .epoch = 1});
    ExpectPointOk({.step = 2, .epoch = 1});
    Reopen();
  }
}

TEST_P(Storage, ConfirmFreesOlderPointsAndTheirSpaceIsUsedAgain) {
  Create();
  CommitStepOk(1);
  const uint64_t one = node_->Snapshot().used_bytes;
  uint64_t most = 0;
  for (uint64_t step = 2; step < 12; ++step) {
    CommitStepOk(step);
    EXPECT_EQ(node_->Snapshot().used_bytes, 2 * one);
    job_->Confirm(step);
    EXPECT_EQ(node_->Snapshot().used_bytes, one);
    EXPECT_EQ(job_->Points().size(), 1u);
    if (step == 3) most = node_->Snapshot().allocated_bytes;
  }
  if (GetParam() == Engine::kExtents) {
    EXPECT_EQ(node_->Snapshot().allocated_bytes, most);
  }
  ExpectPointOk({.step = 11, .epoch = 1});
  EXPECT_EQ(CodeOf(job_->EntriesAt({.step = 10, .epoch = 1}).status()), ErrorCode::kNotFound);
}

TEST_P(Storage, AnUncommittedWriteIsGoneAfterAReopen) {
  Create();
  CommitStepOk(1);
  const uint64_t used = node_->Snapshot().used_bytes;
  ASSERT_TRUE(WriteStep(job_.get(), 0, 2, kShards[0]).ok());
  ASSERT_TRUE(WriteStep(job_.get(), 2, 2, kShards[2]).ok());
  EXPECT_GT(node_->Snapshot().used_bytes, used);
  Reopen();
  EXPECT_EQ(node_->Snapshot().used_bytes, used);
  ExpectPointOk({.step = 1, .epoch = 1});
}

TEST_P(Storage, RollBackKeepsThePointAndNothingNewer) {
  Create();
  CommitStepOk(1);
  const uint64_t used = node_->Snapshot().used_bytes;
  CommitStepOk(2);
  ASSERT_TRUE(WriteStep(job_.get(), 2, 3, kShards[2]).ok());
  ASSERT_TRUE(job_->RollBack({.step = 1, .epoch = 1}, 5).ok());
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(job_->record().epoch, 5u);
    ASSERT_EQ(job_->Points().size(), 1u);
    EXPECT_EQ(job_->Points()[0], (Point{.step = 1, .epoch = 1}));
    ExpectPointOk({.step = 1, .epoch = 1});
    EXPECT_EQ(node_->Snapshot().used_bytes, used);
    Reopen();
  }
  CommitStepOk(2);
  job_->Confirm(2);
  ExpectPointOk({.step = 2, .epoch = 5});
  EXPECT_EQ(CodeOf(job_->RollBack({.step = 2, .epoch = 1}, 6)), ErrorCode::kNotFound);
}

TEST_P(Storage, ARestoreIsNotedUntilTheJobHasGoneBack) {
  Create();
  CommitStepOk(1);
  ASSERT_TRUE(job_->NoteRestore("best").ok());
  Reopen();
  EXPECT_EQ(job_->record().restoring, "best");
  CommitStepOk(2);
  ASSERT_TRUE(job_->RollBack({.step = 2, .epoch = 1}, 5).ok());
  EXPECT_EQ(job_->record().restoring, "");
  Reopen();
  EXPECT_EQ(job_->record().restoring, "");
  EXPECT_EQ(job_->record().epoch, 5u);
  ASSERT_TRUE(job_->NoteRestore("best").ok());
  ASSERT_TRUE(job_->NoteRestore("").ok());
  Reopen();
  EXPECT_EQ(job_->record().restoring, "");
}

TEST_P(Storage, ACheckpointOutlivesItsPointAndAnotherHistory) {
  Create();
  CommitStepOk(1);
  CommitStepOk(2);
  const Point second{.step = 2, .epoch = 1};
  ASSERT_TRUE(job_->CreateCheckpoint({"best", second, 1234}).ok());
  EXPECT_EQ(CodeOf(job_->CreateCheckpoint({"best", second, 1})), ErrorCode::kAlreadyExists);
  EXPECT_EQ(CodeOf(job_->CreateCheckpoint({"none", {.step = 8, .epoch = 1}, 1})),
            ErrorCode::kNotFound);
  // The job goes on from step 1 and makes another step 2 and 3.
  ASSERT_TRUE(job_->RollBack({.step = 1, .epoch = 1}, 2).ok());
  const StatusOr<ShardEntry> other = WriteStep(job_.get(), 2, 2, kShards[2]);
  ASSERT_TRUE(job_->Commit({.step = 2, .epoch = 2}, {*other}, SyncLevel::kSynced).ok());
  CommitStepOk(3);
  job_->Confirm(3);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(job_->Checkpoints().size(), 1u);
    EXPECT_EQ(job_->Checkpoints()[0], (Checkpoint{"best", second, 1234}));
    ExpectPointOk(second);
    const std::vector<ShardEntry> entries = *job_->EntriesAt(second);
    for (const ShardEntry& entry : entries) EXPECT_EQ(entry.generation.step, 2u);
    Reopen();
  }
  ASSERT_TRUE(job_->RollBack(second, 3).ok());
  EXPECT_EQ(job_->Points(), std::vector<Point>{second});
  ExpectPointOk(second);
  const uint64_t used = node_->Snapshot().used_bytes;
  ASSERT_TRUE(job_->DeleteCheckpoint("best").ok());
  EXPECT_EQ(node_->Snapshot().used_bytes, used) << "the point needs the same generations";
  EXPECT_EQ(CodeOf(job_->DeleteCheckpoint("best")), ErrorCode::kNotFound);
  ExpectPointOk(second);
  CommitStepOk(3);
  job_->Confirm(3);
  EXPECT_EQ(node_->Snapshot().used_bytes, used);
}

TEST_P(Storage, ACheckpointThatIsHeldStaysWhateverIsTrainedAndCannotBeDeleted) {
  Create();
  CommitStepOk(1);
  CommitStepOk(2);
  const Point second{.step = 2, .epoch = 1};
  ASSERT_TRUE(job_->CreateCheckpoint({"best", second, 1}).ok());
  EXPECT_EQ(CodeOf(job_->HoldCheckpoint("none").status()), ErrorCode::kNotFound);
  StatusOr<HeldCheckpoint> held = job_->HoldCheckpoint("best");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(held->checkpoint, (Checkpoint{"best", second, 1}));
  EXPECT_EQ(held->entries, *job_->EntriesAt(second));
  ASSERT_TRUE(job_->RollBack({.step = 1, .epoch = 1}, 2).ok());
  for (uint64_t step = 2; step < 6; ++step) {
    CommitStepOk(step);
    job_->Confirm(step);
    EXPECT_EQ(CodeOf(job_->DeleteCheckpoint("best")), ErrorCode::kState);
    for (const ShardEntry& entry : held->entries) {
      EXPECT_EQ(*Read(job_.get(), entry), Content(entry.shard, 2, kShards[entry.shard]));
    }
  }
  StatusOr<HeldCheckpoint> again = job_->HoldCheckpoint("best");
  held->hold.reset();
  EXPECT_EQ(CodeOf(job_->DeleteCheckpoint("best")), ErrorCode::kState);
  again->hold.reset();
  EXPECT_TRUE(job_->DeleteCheckpoint("best").ok());
  EXPECT_EQ(CodeOf(job_->HoldCheckpoint("best").status()), ErrorCode::kNotFound);
}

TEST_P(Storage, ReadsOfADeletedJobFailAndAreNoDamage) {
  Create();
  CommitStepOk(1);
  ASSERT_TRUE(job_->CreateCheckpoint({"best", {.step = 1, .epoch = 1}, 1}).ok());
  const StatusOr<HeldCheckpoint> held = job_->HoldCheckpoint("best");
  ASSERT_TRUE(node_->DeleteJob("job").ok());
  for (const ShardEntry& entry : held->entries) {
    const Status status = Read(job_.get(), entry).status();
    EXPECT_EQ(CodeOf(status), ErrorCode::kNotFound) << status;
  }
  EXPECT_TRUE(node_->Snapshot().damaged.empty());
}

TEST_P(Storage, RefusesACommitThatCannotBeMeant) {
  Create();
  CommitStepOk(5);
  const ShardEntry entry = *WriteStep(job_.get(), 0, 6, kShards[0]);
  const auto commit = [&](uint64_t step, const std::vector<ShardEntry>& changed) {
    return CodeOf(job_->Commit({.step = step, .epoch = 1}, changed, SyncLevel::kSynced));
  };
  EXPECT_EQ(commit(5, {entry}), ErrorCode::kInvalidArgument) << "not above the last point";
  EXPECT_EQ(commit(6, {entry, entry}), ErrorCode::kInvalidArgument) << "twice";
  ShardEntry unwritten = entry;
  ++unwritten.generation.place;
  EXPECT_EQ(commit(6, {unwritten}), ErrorCode::kInvalidArgument);
  ShardEntry later = entry;
  later.generation.step = 7;
  EXPECT_EQ(commit(6, {later}), ErrorCode::kInvalidArgument) << "newer than the point";
  EXPECT_EQ(commit(6, {entry}), ErrorCode::kOk);
}

TEST_P(Storage, JobsAreKeptApartAndGoWhenDeleted) {
  Create();
  CommitStepOk(1);
  StatusOr<std::shared_ptr<JobStorage>> other = node_->CreateJob(Record("other"), kMiB);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(CommitStep(other->get(), {200, 70000}, 4).ok());
  EXPECT_EQ(CodeOf(node_->CreateJob(Record("other"), 0).status()), ErrorCode::kAlreadyExists);
  EXPECT_EQ(node_->Jobs(), (std::vector<JobRecord>{Record("job"), Record("other")}));
  const uint64_t both = node_->Snapshot().used_bytes;
  other->reset();
  ASSERT_TRUE(node_->DeleteJob("other").ok());
  EXPECT_LT(node_->Snapshot().used_bytes, both);
  EXPECT_EQ(CodeOf(node_->DeleteJob("other")), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(node_->OpenJob("other").status()), ErrorCode::kNotFound);
  Reopen();
  EXPECT_EQ(node_->Jobs(), (std::vector<JobRecord>{Record("job")}));
  ExpectPointOk({.step = 1, .epoch = 1});
  ASSERT_TRUE(node_->CreateJob(Record("other"), kMiB).ok());
  EXPECT_TRUE((*node_->OpenJob("other"))->Points().empty());
}

TEST_P(Storage, ManyWritesAtOnceFromACallback) {
  Create();
  constexpr uint64_t kBytes = 2 * kMiB + 4096;
  constexpr uint32_t kCount = 24;
  IoBuffer memory(kCount * kBytes);
  job_->AdoptBuffers({memory.data(), kCount * kBytes});
  std::vector<StatusOr<Generation>> results(kCount, Error(ErrorCode::kInternal, "not called"));
  std::promise<void> all;
  std::atomic<uint32_t> left{kCount};
  for (uint32_t i = 0; i < kCount; ++i) {
    const std::vector<std::byte> content = Content(i, 1, kBytes);
    std::copy(content.begin(), content.end(), memory.data() + i * kBytes);
  }
  std::function<void(uint32_t)> write = [&](uint32_t i) {
    job_->Write(i, memory.data() + i * kBytes, kBytes, [&, i](StatusOr<Generation> done) {
      results[i] = std::move(done);
      if (i + kCount / 2 < kCount) write(i + kCount / 2);
      if (--left == 0) all.set_value();
    });
  };
  for (uint32_t i = 0; i < kCount / 2; ++i) write(i);
  all.get_future().wait();
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(results[i].ok()) << results[i].status();
    EXPECT_EQ(*Read(job_.get(), {i, *results[i]}), Content(i, 1, kBytes));
  }
}

TEST_P(Storage, TakesMemoryMappedWhereForgottenMemoryWas) {
  Create();
  constexpr uint64_t kBytes = kMiB;
  const auto map = [](void* at) {
    const int fixed = at == nullptr ? 0 : MAP_FIXED;
    return ::mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  };
  void* const address = map(nullptr);
  ASSERT_NE(address, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(address);
  const auto write_from_there = [&](uint32_t shard) {
    const std::vector<std::byte> content = Content(shard, 1, kBytes);
    std::copy(content.begin(), content.end(), data);
    std::promise<StatusOr<Generation>> result;
    job_->Write(shard, data, kBytes,
                [&](StatusOr<Generation> done) { result.set_value(std::move(done)); });
    return result.get_future().get();
  };
  job_->AdoptBuffers({data, kBytes});
  ASSERT_TRUE(write_from_there(0).ok());
  job_->ForgetBuffers({data, kBytes});
  ASSERT_EQ(::munmap(address, kBytes), 0);
  ASSERT_EQ(map(address), address);
  const StatusOr<Generation> second = write_from_there(1);
  ASSERT_TRUE(second.ok());
  const auto read = Read(job_.get(), {1, *second});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Content(1, 1, kBytes));
  EXPECT_EQ(::munmap(address, kBytes), 0);
}

// Bug: the record of a checkpoint that was being kept when its job was deleted was written after
// the job's had been removed, and the directory could not be opened any more.
TEST_P(Storage, ACheckpointThatIsKeptWhileItsJobIsDeletedLeavesNothing) {
  Create();
  CommitStepOk(1);
  const Point point{.step = 1, .epoch = 1};
  ASSERT_TRUE(failpoint::Configure("persist.checkpoint=delay(300)").ok());
  std::thread keeps([&] { job_->CreateCheckpoint({"late", point, 1}).IgnoreError(); });
  while (failpoint::Counts()["persist.checkpoint"] == 0) std::this_thread::yield();
  const Status deleted = node_->DeleteJob("job");
  EXPECT_TRUE(deleted.ok()) << deleted;
  keeps.join();
  ASSERT_TRUE(failpoint::Configure("").ok());
  Open();
  EXPECT_TRUE(node_->Jobs().empty());
}

TEST_P(Storage, NothingIsWrittenOfAJobThatWasDeleted) {
  Create();
  CommitStepOk(1);
  const Point point{.step = 1, .epoch = 1};
  ASSERT_TRUE(job_->CreateCheckpoint({"kept", point, 1}).ok());
  ASSERT_TRUE(node_->DeleteJob("job").ok());
  EXPECT_EQ(CodeOf(node_->DeleteJob("job")), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(job_->CreateCheckpoint({"late", point, 1})), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(job_->DeleteCheckpoint("kept")), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(job_->NoteRestore("kept")), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(job_->RollBack(point, 2)), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(job_->Commit({.step = 2, .epoch = 1}, {}, SyncLevel::kSynced)),
            ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(Write(job_.get(), 0, Content(0, 2, 100)).status()), ErrorCode::kNotFound);
  job_->Confirm(2);
  Open();
  EXPECT_TRUE(node_->Jobs().empty());
  Create();
  EXPECT_TRUE(job_->Checkpoints().empty());
}

// Nodes that have gone back to it have no other point.
TEST_P(Storage, ACheckpointThatIsGoneBackToIsNotDeleted) {
  Create();
  CommitStepOk(1);
  const Point point{.step = 1, .epoch = 1};
  ASSERT_TRUE(job_->CreateCheckpoint({"best", point, 1}).ok());
  ASSERT_TRUE(job_->NoteRestore("best").ok());
  EXPECT_EQ(CodeOf(job_->DeleteCheckpoint("best")), ErrorCode::kState);
  ASSERT_TRUE(job_->RollBack(point, 2).ok());
  EXPECT_TRUE(job_->DeleteCheckpoint("best").ok());
}

TEST_P(Storage, AShutdownRefusesWhatComesAfterIt) {
  Create();
  CommitStepOk(1);
  node_->Shutdown();
  EXPECT_EQ(CodeOf(Write(job_.get(), 0, Content(0, 2, 100)).status()), ErrorCode::kCancelled);
  EXPECT_EQ(CodeOf(job_->Commit({.step = 2, .epoch = 1}, {}, SyncLevel::kSynced)),
            ErrorCode::kCancelled);
  ExpectPointOk({.step = 1, .epoch = 1});
}

INSTANTIATE_TEST_SUITE_P(Engines, Storage,
                         testing::Values(Engine::kExtents, Engine::kRocksdbValues),
                         [](const auto& param) {
                           return param.param == Engine::kExtents ? "Extents" : "RocksdbValues";
                         });

}  // namespace
}  // namespace luwu::persist
