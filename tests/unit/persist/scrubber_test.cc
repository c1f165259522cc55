// The scrubber: finds damage in what is kept, and takes nothing else for it.
#include <cerrno>
#include <memory>
#include <string>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "server/persist/disk_queue.h"
#include "tests/unit/persist/fault_machine.h"

namespace luwu::persist {
namespace {

const std::vector<uint64_t> kShards = {300, 3 * kMiB, 200'000};

class Scrubbing : public testing::TestWithParam<Engine> {
 protected:
  void Start(uint64_t bytes_per_s) {
    machine_ = std::make_unique<FaultMachine>(GetParam());
    machine_->options()->scrub_bytes_per_s = bytes_per_s;
    auto node = machine_->Open();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = std::move(*node);
    job_ = *node_->CreateJob(Record("job"), 0);
    ASSERT_TRUE(CommitStep(job_.get(), kShards, 1).ok());
    job_->Confirm(1);
  }
  bool Cycles(uint64_t more) {
    const uint64_t now = node_->Snapshot().scrub_cycles;
    return Eventually([&] { return node_->Snapshot().scrub_cycles >= now + more; });
  }

  std::unique_ptr<FaultMachine> machine_;
  std::unique_ptr<NodeStorage> node_;
  std::shared_ptr<JobStorage> job_;
};

TEST_P(Scrubbing, ReadsEverythingAndFindsNothingWhileStateIsReplaced) {
  Start(10 * kGiB);
  for (uint64_t step = 2; step < 30; ++step) {
    ASSERT_TRUE(CommitStep(job_.get(), kShards, step).ok());
    job_->Confirm(step);
  }
  ASSERT_TRUE(Cycles(2));
  const StorageSnapshot snapshot = node_->Snapshot();
  EXPECT_GE(snapshot.scrubbed_bytes, 3 * kMiB);
  EXPECT_TRUE(snapshot.damaged.empty()) << snapshot.damaged[0];
}

INSTANTIATE_TEST_SUITE_P(Engines, Scrubbing,
                         testing::Values(Engine::kExtents, Engine::kRocksdbValues),
                         [](const auto& param) {
                           return param.param == Engine::kExtents ? "Extents" : "RocksdbValues";
                         });

TEST(ScrubbingExtents, NamesTheShardWhoseBitWasFlipped) {
  FaultMachine machine(Engine::kExtents);
  machine.options()->scrub_bytes_per_s = 10 * kGiB;
  auto node = *machine.Open();
  auto job = *node->CreateJob(Record("job"), 0);
  ASSERT_TRUE(CommitStep(job.get(), kShards, 1).ok());
  job->Confirm(1);
  const std::vector<ShardEntry> entries = *job->EntriesAt({.step = 1, .epoch = 1});
  std::string path;
  for (const std::string& each : machine.disk()->Paths()) {
    if (each.ends_with("extents/1")) path = each;
  }
  ASSERT_NE(path, "");
  machine.disk()->Flip(path, entries[1].generation.place + 2 * kMiB, std::byte{16});
  ASSERT_TRUE(Eventually([&] { return !node->Snapshot().damaged.empty(); }));
  const std::string damage = node->Snapshot().damaged[0];
  for (const char* part : {"job 'job'", "shard 1", "extents/1"})
    EXPECT_NE(damage.find(part), std::string::npos) << damage;
}

TEST(Piece, GoesOnAfterShortTransfersAtWholeBlocks) {
  std::byte* const data = nullptr;
  Piece piece{data, 16384, 4096};
  int error = 0;
  EXPECT_EQ(piece.Advance(9000, Transfer::Kind::kWrite, &error), Piece::Next::kAgain);
  EXPECT_EQ(piece.bytes, 8192u);
  EXPECT_EQ(piece.offset, 4096u + 8192);
  EXPECT_EQ(piece.Advance(-EINTR, Transfer::Kind::kWrite, &error), Piece::Next::kAgain);
  EXPECT_EQ(piece.Advance(8192, Transfer::Kind::kWrite, &error), Piece::Next::kDone);
  EXPECT_EQ(error, 0);
}

TEST(Piece, EndsWithWhatIsWrong) {
  const auto outcome = [](int64_t result, Transfer::Kind kind) {
    Piece piece{nullptr, 4096, 0};
    int error = 0;
    EXPECT_EQ(piece.Advance(result, kind, &error), Piece::Next::kFailed);
    return error;
  };
  EXPECT_EQ(outcome(-EIO, Transfer::Kind::kRead), EIO);
  EXPECT_EQ(outcome(0, Transfer::Kind::kRead), ENODATA);
  EXPECT_EQ(outcome(0, Transfer::Kind::kWrite), ENOSPC);
  Piece piece{nullptr, 4096, 0};
  int error = 0;
  int again = 0;
  while (piece.Advance(-EAGAIN, Transfer::Kind::kRead, &error) == Piece::Next::kAgain) ++again;
  EXPECT_EQ(error, EIO);
  EXPECT_GT(again, 100);
}

TEST(RocksdbChecksums, AreMadeByOurFunction) {
  void* const found = ::dlsym(RTLD_DEFAULT, "_ZN7rocksdb6crc32c6ExtendEjPKcm");
  Dl_info info{};
  ASSERT_NE(found, nullptr);
  ASSERT_NE(::dladdr(found, &info), 0);
  EXPECT_EQ(std::string(info.dli_fname).find("librocksdb"), std::string::npos) << info.dli_fname;
}

}  // namespace
}  // namespace luwu::persist
