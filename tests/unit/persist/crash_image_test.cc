// Data directories as a crash left them: copied while their storage was open, and damaged where
// only a crash damages. What was promised is there, or the storage says what is missing; what was
// never promised prevents nothing.
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/persist/storage_world.h"

namespace luwu::persist {
namespace {

namespace fs = std::filesystem;

const std::vector<uint64_t> kShards = {300, 150'000};
constexpr Point kSynced{.step = 1, .epoch = 1};
constexpr Point kLogged{.step = 2, .epoch = 1};

std::string FileText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void SetFileText(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// The log that RocksDB writes to.
fs::path LogOf(const std::string& data) {
  for (const auto& entry : fs::directory_iterator(data + "/catalogue")) {
    if (entry.path().extension() == ".log") return entry.path();
  }
  return {};
}

// Opened by the kernel of this boot.
StatusOr<std::unique_ptr<NodeStorage>> OpenIn(const std::string& data, const std::string& boot) {
  StorageSeams seams;
  seams.boot_id = boot;
  return NodeStore::Open(OptionsFor(data), seams);
}

class CrashImage : public testing::Test {
 protected:
  // A synced point, then a logged one; then the end, with the catalogue's log as it was.
  void SetUp() override {
    const std::string live = folder_.path() + "/live";
    auto node = OpenIn(live, "first");
    ASSERT_TRUE(node.ok()) << node.status();
    auto job = *(*node)->CreateJob(Record("job"), 0);
    ASSERT_TRUE(CommitStep(job.get(), kShards, 1, SyncLevel::kSynced).ok());
    synced_bytes_ = FileText(LogOf(live)).size();
    ASSERT_TRUE(CommitStep(job.get(), kShards, 2, SyncLevel::kLogged).ok());
    fs::copy(live, image_, fs::copy_options::recursive);
    // What was set aside and never written need not be copied again and again.
    fs::resize_file(image_ + "/extents/1", kMiB);
    log_ = LogOf(image_);
    text_ = FileText(log_);
    ASSERT_GT(text_.size(), synced_bytes_);
  }
  // Another try with what the crash left.
  std::string Damaged(const std::string& log) {
    const std::string copy = folder_.path() + fmt::format("/copy{}", copies_++);
    fs::copy(image_, copy, fs::copy_options::recursive);
    SetFileText(fs::path(copy) / fs::relative(log_, image_), log);
    return copy;
  }

  const TestFolder folder_{"/dev/shm"};
  const std::string image_ = folder_.path() + "/image";
  fs::path log_;
  std::string text_;
  uint64_t synced_bytes_ = 0;  // of the log, when the synced point was made
  int copies_ = 0;
};

TEST_F(CrashImage, IsWholeAfterTheEndOfTheProcess) {
  auto node = OpenIn(image_, "first");
  ASSERT_TRUE(node.ok()) << node.status();
  auto job = *(*node)->OpenJob("job");
  EXPECT_EQ(job->Points(), (std::vector<Point>{kSynced, kLogged}));
  EXPECT_TRUE(CheckPoint(job.get(), kLogged, kShards).ok());
}

// RocksDB used to take a garbled end for damage, and the node did not start.
TEST_F(CrashImage, TornEndThatWasNeverSyncedDoesNotPreventAStart) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 40; ++i) {
    std::string torn = text_;
    const uint64_t end = synced_bytes_ + random() % (text_.size() - synced_bytes_);
    if (i % 4 == 0) torn.resize(end);
    for (uint64_t at = synced_bytes_; i % 4 != 0 && at < torn.size(); ++at) {
      const bool sector_is_lost = (at / 512 * 2654435761u + i) % 3 == 0;
      if (i % 4 == 1 && at >= end) torn[at] = static_cast<char>(random());
      if (i % 4 == 2) torn[at] = static_cast<char>(random());
      if (i % 4 == 3 && sector_is_lost) torn[at] = '\0';
    }
    const std::string data = Damaged(torn);
    auto node = OpenIn(data, "second");
    ASSERT_TRUE(node.ok()) << "try " << i << ": " << node.status();
    auto job = *(*node)->OpenJob("job");
    ASSERT_FALSE(job->Points().empty());
    ASSERT_EQ(job->Points().front(), kSynced);
    const Status status = CheckPoint(job.get(), kSynced, kShards);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(job->RollBack(kSynced, 2).ok());
    ASSERT_TRUE(CommitStep(job.get(), kShards, 5).ok());
    job.reset();
    node->reset();
    ASSERT_TRUE(OpenIn(data, "third").ok());
    fs::remove_all(data);
  }
}

TEST_F(CrashImage, APointThatOnlyTheProcessCouldLoseIsMissedWhileTheMachineRuns) {
  std::string torn = text_;
  torn.resize(synced_bytes_);
  const std::string data = Damaged(torn);
  const Status status = OpenIn(data, "first").status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
  EXPECT_NE(MessageOf(status).find("point 2 of job number 1"), std::string::npos) << status;
  EXPECT_EQ(FileText(LogOf(data)), torn) << "nothing is touched";
  EXPECT_TRUE(OpenIn(data, "second").ok()) << "after a loss of power nobody counts on it";
}

// It used to be taken for a catalogue without jobs, and their payload was removed.
TEST_F(CrashImage, EmptiedOrMissingLogIsNotTakenForNoJobs) {
  for (const bool missing : {false, true}) {
    for (const char* const boot : {"first", "second"}) {
      const std::string data = Damaged("");
      if (missing) fs::remove(LogOf(data));
      const Status status = OpenIn(data, boot).status();
      EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
      EXPECT_NE(MessageOf(status).find("restore"), std::string::npos) << status;
      EXPECT_EQ(FileText(data + "/extents/1"), FileText(image_ + "/extents/1"));
      EXPECT_EQ(CodeOf(OpenIn(data, boot).status()), ErrorCode::kCorrupt) << "each time";
      fs::remove_all(data);
    }
  }
}

TEST_F(CrashImage, EveryBitOfWhatWasSyncedIsMissedWhenItIsFlipped) {
  for (uint64_t bit = 0; bit < synced_bytes_ * 8; bit += 97) {
    std::string flipped = text_;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const std::string data = Damaged(flipped);
    const Status status = OpenIn(data, "second").status();
    ASSERT_EQ(CodeOf(status), ErrorCode::kCorrupt) << "bit " << bit << ": " << status;
    fs::remove_all(data);
  }
}

}  // namespace
}  // namespace luwu::persist
