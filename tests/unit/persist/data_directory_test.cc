// Who may use a data directory, and what damage to its files is taken for.
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "server/persist/catalogue.h"
#include "server/persist/identity.h"
#include "tests/unit/persist/fault_machine.h"

namespace luwu::persist {
namespace {

namespace fs = std::filesystem;

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void SetFileText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// An IDENTITY of another format, with its checksum.
std::string WithFormat(const std::string& identity, int format) {
  std::string body = identity.substr(0, identity.rfind("crc32c "));
  const size_t at = body.find("format ");
  body.replace(at, body.find('\n', at) - at, fmt::format("format {}", format));
  const uint32_t crc = Crc32c(std::as_bytes(std::span(body.data(), body.size())));
  return fmt::format("{}crc32c {:08x}\n", body, crc);
}

Status OpenStatus(const StorageOptions& options) { return NodeStorage::Open(options).status(); }

TEST(DataDirectory, BelongsToOneProcessAtATime) {
  const TestFolder folder("/dev/shm");
  const StorageOptions options = OptionsFor(folder.path() + "/data");
  auto first = NodeStorage::Open(options);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(fs::status(options.path).permissions(), fs::perms::owner_all);
  const Status second = OpenStatus(options);
  EXPECT_EQ(CodeOf(second), ErrorCode::kPermission);
  EXPECT_NE(MessageOf(second).find(fmt::format("(pid {})", ::getpid())), std::string::npos)
      << second;
  first->reset();
  EXPECT_TRUE(OpenStatus(options).ok());
}

TEST(DataDirectory, BelongsToOneNode) {
  const TestFolder folder("/dev/shm");
  StorageOptions options = OptionsFor(folder.path());
  ASSERT_TRUE(OpenStatus(options).ok());
  options.node_name = "node-b";
  const Status status = OpenStatus(options);
  EXPECT_EQ(CodeOf(status), ErrorCode::kPermission);
  for (const char* part : {folder.path().c_str(), "node-a", "node-b"})
    EXPECT_NE(MessageOf(status).find(part), std::string::npos) << status;
}

TEST(DataDirectory, IsNotTakenFromSomebodyElse) {
  const TestFolder folder("/dev/shm");
  SetFileText(folder.path() + "/thesis.tex", "x");
  EXPECT_EQ(CodeOf(OpenStatus(OptionsFor(folder.path()))), ErrorCode::kPermission);
  EXPECT_EQ(FileText(folder.path() + "/thesis.tex"), "x");
  const auto files = [&] {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  };
  EXPECT_EQ(files(), 1) << "not even a lock is left there";
  SetFileText(folder.path() + "/LOCK", "");  // somebody else's, of a RocksDB for example
  EXPECT_EQ(CodeOf(OpenStatus(OptionsFor(folder.path()))), ErrorCode::kPermission);
  EXPECT_EQ(FileText(folder.path() + "/LOCK"), "");
  EXPECT_EQ(files(), 2);
}

TEST(DataDirectory, OfANewerFormatIsRefusedAndADamagedIdentityToo) {
  const TestFolder folder("/dev/shm");
  const StorageOptions options = OptionsFor(folder.path());
  ASSERT_TRUE(OpenStatus(options).ok());
  const std::string file = folder.path() + "/IDENTITY";
  const std::string text = FileText(file);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    SetFileText(file, flipped);
    ASSERT_EQ(CodeOf(OpenStatus(options)), ErrorCode::kCorrupt) << "bit " << bit;
  }
  SetFileText(file, WithFormat(text, 3));
  EXPECT_EQ(CodeOf(OpenStatus(options)), ErrorCode::kUnsupported);
  SetFileText(file, text);
  EXPECT_TRUE(OpenStatus(options).ok());
}

TEST(DataDirectory, OfAnInterruptedFirstStartIsNew) {
  const TestFolder folder("/dev/shm");
  ASSERT_TRUE(BeginIdentity(folder.path(), {"node-a", Engine::kExtents}).ok());
  fs::create_directories(folder.path() + "/extents");
  EXPECT_TRUE(OpenStatus(OptionsFor(folder.path())).ok());
}

TEST(DataDirectory, WithoutItsCatalogueIsDamaged) {
  const TestFolder folder("/dev/shm");
  ASSERT_TRUE(OpenStatus(OptionsFor(folder.path())).ok());
  fs::remove_all(folder.path() + "/catalogue");
  EXPECT_EQ(CodeOf(OpenStatus(OptionsFor(folder.path()))), ErrorCode::kCorrupt);
}

// Writes records into the catalogue of a directory that is not open.
void AddRecords(const std::string& path, const std::function<void(Catalogue::Batch*)>& add) {
  const auto promises = Promises::Open(path, SystemFiles(), BootId(), /*create=*/false);
  ASSERT_TRUE(promises.ok()) << promises.status();
  const auto catalogue =
      Catalogue::Open({.path = path + "/catalogue", .promises = promises->get()});
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  Catalogue::Batch batch;
  add(&batch);
  ASSERT_TRUE((*catalogue)->Write(&batch, /*sync=*/true).ok());
}

// Bug: former releases left these behind, and no daemon with them started any more.
TEST(DataDirectory, DropsWhatIsLeftOfADeletedJobAndRefusesWhatIsNotExplained) {
  const TestFolder folder("/dev/shm");
  const StorageOptions options = OptionsFor(folder.path());
  {
    auto node = *NodeStorage::Open(options);
    ASSERT_TRUE(CommitStep(node->CreateJob(Record("stays"), 0)->get(), {100, kMiB}, 1).ok());
    ASSERT_TRUE(node->CreateJob(Record("goes"), 0).ok());  // number 2
    ASSERT_TRUE(node->DeleteJob("goes").ok());
  }
  const StoredCheckpoint late{1, {"late", {.step = 3, .epoch = 1}, 1}};
  StoredJob record{2, Record("goes"), 0, 1};
  record.record.restoring = "late";
  for (const bool with_job : {false, true}) {
    AddRecords(folder.path(), [&](Catalogue::Batch* batch) {
      batch->Put(2, late);
      if (with_job) batch->Put(record);
    });
    for (int start = 0; start < 2; ++start) {
      const auto node = NodeStorage::Open(options);
      ASSERT_TRUE(node.ok()) << node.status();
      ASSERT_EQ((*node)->Jobs().size(), 1u);
      auto stays = *(*node)->OpenJob("stays");
      EXPECT_TRUE(CheckPoint(stays.get(), {.step = 1, .epoch = 1}, {100, kMiB}).ok());
    }
  }
  // Of a number that was never given out.
  AddRecords(folder.path(), [&](Catalogue::Batch* batch) { batch->Put(3, late); });
  EXPECT_EQ(CodeOf(OpenStatus(options)), ErrorCode::kCorrupt);
  AddRecords(folder.path(), [&](Catalogue::Batch* batch) { batch->DeleteJob(3); });
  // No deletion leaves a branch: the record of the job has been lost.
  AddRecords(folder.path(), [&](Catalogue::Batch* batch) {
    batch->Put(2, Branch{1, 0, 0});
    batch->Put(2, late);
  });
  EXPECT_EQ(CodeOf(OpenStatus(options)), ErrorCode::kCorrupt);
  AddRecords(folder.path(), [&](Catalogue::Batch* batch) { batch->DeleteJob(2); });
  EXPECT_TRUE(OpenStatus(options).ok());
}

// Bug: what it pointed at was made as long as the reserve.
TEST(DataDirectory, DoesNotFollowALinkInPlaceOfItsReserve) {
  const TestFolder folder("/dev/shm");
  const StorageOptions options = OptionsFor(folder.path() + "/data");
  ASSERT_TRUE(OpenStatus(options).ok());
  SetFileText(folder.path() + "/thesis.tex", "x");
  fs::remove(options.path + "/RESERVE");
  fs::create_symlink(folder.path() + "/thesis.tex", options.path + "/RESERVE");
  const Status status = OpenStatus(options);
  EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
  EXPECT_NE(MessageOf(status).find("RESERVE"), std::string::npos) << status;
  EXPECT_EQ(FileText(folder.path() + "/thesis.tex"), "x");
}

// Bug: the reserve was given away for what no space helps against, and nobody was told.
TEST(DataDirectory, WithoutAFreeInodeKeepsItsReserveAndSaysSo) {
  const TestFolder folder("/dev/shm");
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64m,nr_inodes=60") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root: " << std::strerror(errno);
  StorageOptions options = OptionsFor(folder.path() + "/data");
  options.memory_budget_bytes = 256 * kMiB;
  ASSERT_TRUE(OpenStatus(options).ok());
  int files = 0;
  while (std::ofstream(fmt::format("{}/{}", folder.path(), files))) ++files;
  const Status status = OpenStatus(options);
  EXPECT_EQ(CodeOf(status), ErrorCode::kResourceExhausted);
  EXPECT_NE(MessageOf(status).find("no inode is free"), std::string::npos) << status;
  EXPECT_EQ(fs::file_size(options.path + "/RESERVE"), options.reserve_bytes);
  for (int i = 0; i < files; ++i) fs::remove(fmt::format("{}/{}", folder.path(), i));
  EXPECT_TRUE(OpenStatus(options).ok());
  EXPECT_EQ(::umount(folder.path().c_str()), 0);
}

TEST(DataDirectory, KeepsItsEngineWhileItHasJobs) {
  const TestFolder folder("/dev/shm");
  const StorageOptions extents = OptionsFor(folder.path(), Engine::kExtents);
  const StorageOptions values = OptionsFor(folder.path(), Engine::kRocksdbValues);
  const StorageOptions any = OptionsFor(folder.path(), Engine::kAuto);
  ASSERT_TRUE(OpenStatus(extents).ok());
  ASSERT_TRUE(OpenStatus(values).ok()) << "no job yet";
  ASSERT_TRUE((*NodeStorage::Open(values))->CreateJob(Record("job"), 0).ok());
  const Status status = OpenStatus(extents);
  EXPECT_EQ(CodeOf(status), ErrorCode::kUnsupported) << status;
  EXPECT_EQ((*NodeStorage::Open(any))->Snapshot().engine, Engine::kRocksdbValues);
}

TEST(DataDirectory, OptionsThatCannotBeMeant) {
  EXPECT_EQ(CodeOf(OpenStatus(OptionsFor("relative"))), ErrorCode::kInvalidArgument);
  StorageOptions nameless = OptionsFor("/dev/shm/luwu_nameless");
  nameless.node_name = "";
  EXPECT_EQ(CodeOf(OpenStatus(nameless)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(OpenStatus(OptionsFor("/dev/shm/luwu_no_such/parent"))), ErrorCode::kCorrupt);
}

TEST(DataDirectory, OfTheFormatWithoutPromisesIsReadAndMadeNew) {
  const TestFolder folder("/dev/shm");
  const StorageOptions options = OptionsFor(folder.path());
  {
    auto node = NodeStorage::Open(options);
    ASSERT_TRUE(node.ok()) << node.status();
    ASSERT_TRUE(CommitStep((*node)->CreateJob(Record("job"), 0)->get(), {300}, 1).ok());
  }
  const std::string file = folder.path() + "/IDENTITY";
  const std::string text = FileText(file);
  SetFileText(file, WithFormat(text, 1));
  fs::remove(folder.path() + "/PROMISED");
  {
    auto node = NodeStorage::Open(options);
    ASSERT_TRUE(node.ok()) << node.status();
    EXPECT_TRUE(CheckPoint((*node)->OpenJob("job")->get(), {.step = 1, .epoch = 1}, {300}).ok());
  }
  EXPECT_EQ(FileText(file), text);
  EXPECT_TRUE(OpenStatus(options).ok());
  fs::remove(folder.path() + "/PROMISED");
  const Status status = OpenStatus(options);
  EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
  EXPECT_NE(MessageOf(status).find("PROMISED"), std::string::npos) << status;
}

TEST(DataDirectory, WhatACrashLeftOfAJobIsRemoved) {
  const TestFolder folder("/dev/shm");
  {
    auto node = NodeStorage::Open(OptionsFor(folder.path()));
    ASSERT_TRUE(node.ok());
    ASSERT_TRUE((*node)->CreateJob(Record("job"), 0).ok());
    ASSERT_TRUE((*node)->DeleteJob("job").ok());
  }
  SetFileText(folder.path() + "/extents/1", "of the job that was deleted");
  SetFileText(folder.path() + "/extents/2", "");  // before the record of the next one
  SetFileText(folder.path() + "/extents/probe", "of a self-test");
  ASSERT_TRUE(OpenStatus(OptionsFor(folder.path())).ok());
  EXPECT_TRUE(fs::is_empty(folder.path() + "/extents"));
}

TEST(DataDirectory, PayloadThatTheCatalogueNeverKnewIsNotRemoved) {
  const TestFolder folder("/dev/shm");
  ASSERT_TRUE(OpenStatus(OptionsFor(folder.path())).ok());
  for (const char* const name : {"77", "notes.txt"}) {
    const std::string file = folder.path() + "/extents/" + name;
    SetFileText(file, "state");
    const Status status = OpenStatus(OptionsFor(folder.path()));
    EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
    EXPECT_NE(MessageOf(status).find(file), std::string::npos) << status;
    EXPECT_EQ(FileText(file), "state");
    fs::remove(file);
  }
}

// A file system of 64 MiB that really is full.
TEST(DataDirectory, OnAFullTmpfsWaitsAndGoesOn) {
  const TestFolder folder("/dev/shm");
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64m") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root: " << std::strerror(errno);
  const std::vector<uint64_t> shards = {300, 4 * kMiB, 4 * kMiB};
  {
    auto node = NodeStorage::Open(OptionsFor(folder.path() + "/data"));
    ASSERT_TRUE(node.ok()) << node.status();
    auto job = *(*node)->CreateJob(Record("job"), 20 * kMiB);
    ASSERT_TRUE(CommitStep(job.get(), shards, 1).ok());
    EXPECT_EQ(CodeOf((*node)->CreateJob(Record("more"), 60 * kMiB).status()),
              ErrorCode::kResourceExhausted);
    const std::string filler = folder.path() + "/filler";
    std::ofstream(filler) << std::string(70 * kMiB, 'x');
    auto more = std::async(std::launch::async, [&] {
      for (uint64_t step = 2; step < 8; ++step) {
        const Status status = CommitStep(job.get(), shards, step);
        if (!status.ok()) return status;
      }
      return OkStatus();
    });
    ASSERT_TRUE(Eventually([&] { return (*node)->Snapshot().full.has_value(); }));
    EXPECT_TRUE(CheckPoint(job.get(), {.step = 1, .epoch = 1}, shards).ok());
    fs::remove(filler);
    EXPECT_TRUE(Eventually([&] {
      if (job->Points().size() > 1) job->Confirm(job->Points().back().step);
      return more.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    const Status status = more.get();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(CheckPoint(job.get(), {.step = 7, .epoch = 1}, shards).ok());
  }
  EXPECT_EQ(::umount(folder.path().c_str()), 0);
}

void Fill(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (size_t bytes = 64 * kKiB; bytes > 0;) {
    const std::string block(bytes, 'x');
    if (!file.write(block.data(), static_cast<std::streamsize>(bytes)).flush()) {
      file.clear();
      bytes /= 2;
    }
  }
}

class FullDisk : public testing::TestWithParam<Engine> {};

TEST_P(FullDisk, HasRoomToStartAndToDelete) {
  const TestFolder folder("/dev/shm");
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64m") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root: " << std::strerror(errno);
  StorageOptions options = OptionsFor(folder.path() + "/data", GetParam());
  options.memory_budget_bytes = 256 * kMiB;
  const std::vector<uint64_t> shards = {300, 2 * kMiB, 2 * kMiB};
  const Point first{.step = 1, .epoch = 1};
  const auto free_bytes = [&] { return fs::space(folder.path()).available; };
  {
    auto node = NodeStorage::Open(options);
    ASSERT_TRUE(node.ok()) << node.status();
    auto job = *(*node)->CreateJob(Record("job"), 8 * kMiB);
    ASSERT_TRUE(CommitStep(job.get(), shards, 1).ok());
    ASSERT_TRUE(job->CreateCheckpoint({"kept", first, 1}).ok());
    ASSERT_TRUE(CommitStep(job.get(), shards, 2).ok());
    job->Confirm(2);
  }
  const std::string filler = folder.path() + "/filler";
  for (int round = 0; round < 3; ++round) {
    Fill(fmt::format("{}{}", filler, round));
    ASSERT_EQ(free_bytes(), 0u);
    auto node = NodeStorage::Open(options);
    ASSERT_TRUE(node.ok()) << "round " << round << ": " << node.status();
    auto job = *(*node)->OpenJob("job");
    EXPECT_TRUE(CheckPoint(job.get(), {.step = 2, .epoch = 1}, shards).ok());
    if (round == 1) {
      const Status deleted = job->DeleteCheckpoint("kept");
      EXPECT_TRUE(deleted.ok()) << deleted;
    }
    if (round == 2) {
      job.reset();
      const Status deleted = (*node)->DeleteJob("job");
      EXPECT_TRUE(deleted.ok()) << deleted;
      EXPECT_GT(free_bytes(), 4 * kMiB) << "of which the reserve takes what it lacks";
      fs::remove(filler + "0");
      EXPECT_TRUE(Eventually([&] { return !(*node)->Snapshot().full.has_value(); }));
      auto next = (*node)->CreateJob(Record("next"), 2 * kMiB);
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_TRUE(CommitStep(next->get(), {kMiB}, 1).ok());
    }
  }
  EXPECT_EQ(::umount(folder.path().c_str()), 0);
}

// While the reserve is not whole, nobody else gets what it needs.
TEST(Reserve, IsMadeWholeBeforePayloadGoesOn) {
  FaultMachine machine(Engine::kExtents);
  auto node = machine.Open();
  ASSERT_TRUE(node.ok());
  auto job = *(*node)->CreateJob(Record("job"), 0);
  ASSERT_TRUE(CommitStep(job.get(), {300, kMiB}, 1).ok());
  const std::string file = machine.options()->path + "/RESERVE";
  const uint64_t whole = machine.options()->reserve_bytes;
  EXPECT_EQ(machine.disk()->SizeOf(file), whole);
  const uint64_t full = fakes::FakeDisk::kTotalBytes - (*node)->Snapshot().free_bytes;
  node->reset();
  job.reset();
  // The self-test of the next start takes a piece of it, which does not come back.
  machine.disk()->set_capacity(full - kMiB / 2);
  node = machine.Open();
  ASSERT_TRUE(node.ok()) << node.status();
  job = *(*node)->OpenJob("job");
  EXPECT_EQ(machine.disk()->SizeOf(file), whole - kMiB);
  EXPECT_TRUE(Eventually([&] { return (*node)->Snapshot().full.has_value(); }));
  EXPECT_TRUE(WriteStep(job.get(), 1, 2, kMiB).ok()) << "the file has room for it";
  auto write = std::async(std::launch::async,
                          [&] { return WriteStep(job.get(), 1, 3, 80 * kMiB).status(); });
  EXPECT_TRUE(Eventually([&] { return (*node)->Snapshot().waiting_writes == 2; }));
  machine.disk()->set_capacity(full);  // enough for the reserve, not for the write
  EXPECT_TRUE(Eventually([&] { return machine.disk()->SizeOf(file) == whole; }));
  EXPECT_EQ(write.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  machine.disk()->set_capacity(fakes::FakeDisk::kTotalBytes);
  const Status status = write.get();
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Engines, FullDisk,
                         testing::Values(Engine::kExtents, Engine::kRocksdbValues),
                         [](const auto& param) {
                           return param.param == Engine::kExtents ? "Extents" : "RocksdbValues";
                         });

TEST(Thresholds, StopCheckpointsFirstThenWrites) {
  FaultMachine machine(Engine::kExtents);
  machine.options()->budget_bytes = 10 * kMiB;
  auto node = machine.Open();
  ASSERT_TRUE(node.ok());
  EXPECT_EQ((*node)->Snapshot().budget_bytes, 10 * kMiB);
  auto job = *(*node)->CreateJob(Record("job"), 5 * kMiB);
  const Status refused = (*node)->CreateJob(Record("other"), 5 * kMiB).status();
  EXPECT_EQ(CodeOf(refused), ErrorCode::kResourceExhausted);
  EXPECT_NE(MessageOf(refused).find("4.5 MiB"), std::string::npos) << refused;
  const Point first{.step = 1, .epoch = 1};
  ASSERT_TRUE(CommitStep(job.get(), {9 * kMiB}, 1).ok());
  ASSERT_TRUE(job->CreateCheckpoint({"at 90 percent", first, 1}).ok());
  const ShardEntry entry = *WriteStep(job.get(), 1, 2, 100'000);
  EXPECT_EQ(CodeOf(job->CreateCheckpoint({"above", first, 1})), ErrorCode::kResourceExhausted);
  auto write =
      std::async(std::launch::async, [&] { return WriteStep(job.get(), 2, 2, 500'000).status(); });
  ASSERT_TRUE(Eventually([&] { return (*node)->Snapshot().full.has_value(); }));
  job->Discard(entry.generation);
  const Status status = write.get();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace luwu::persist
