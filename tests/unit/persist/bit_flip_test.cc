// One flipped bit anywhere in a data directory: the storage says so, or gives exactly what was
// stored, because the bit is not used. Never anything else. The directory was closed in good order,
// or is one that a killed process left behind.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/persist/storage_world.h"

namespace luwu::persist {
namespace {

namespace fs = std::filesystem;

const std::vector<uint64_t> kShards = {300, 64 * kKiB, 150'000};
const Point kKept{.step = 2, .epoch = 1};
const Point kNewest{.step = 3, .epoch = 1};

enum class End { kClosed, kKilled };

// `path` is the directory as it was at the end.
void Build(const std::string& path, Engine engine, End end) {
  const std::string live = end == End::kKilled ? path + ".live" : path;
  auto node = NodeStorage::Open(OptionsFor(live, engine));
  ASSERT_TRUE(node.ok()) << node.status();
  auto job = *(*node)->CreateJob(Record("job"), 0);
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(CommitStep(job.get(), kShards, step).ok());
    if (step == 2) {
      ASSERT_TRUE(job->CreateCheckpoint({"kept", kKept, 99}).ok());
    }
    job->Confirm(step);
  }
  if (end == End::kKilled) fs::copy(live, path, fs::copy_options::recursive);
}

enum class Outcome { kDetected, kUnread, kWrong };

Outcome Judge(const Status& status) {
  const ErrorCode code = CodeOf(status);
  const bool told = code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported ||
                    code == ErrorCode::kPermission;
  return told ? Outcome::kDetected : Outcome::kWrong;
}

Outcome Open(const std::string& path, Engine engine, std::string* what) {
  auto node = NodeStorage::Open(OptionsFor(path, engine));
  *what = ToString(node.status());
  if (!node.ok()) return Judge(node.status());
  auto job = (*node)->OpenJob("job");
  *what = ToString(job.status());
  if (!job.ok()) return Judge(job.status());
  *what = "points or checkpoints differ";
  const std::vector<Checkpoint> kept = {{"kept", kKept, 99}};
  if ((*job)->record() != Record("job") || (*job)->Points() != std::vector<Point>{kNewest} ||
      (*job)->Checkpoints() != kept)
    return Outcome::kWrong;
  Outcome outcome = Outcome::kUnread;
  for (const Point& point : {kKept, kNewest}) {
    const Status status = CheckPoint(job->get(), point, kShards);
    if (status.ok()) continue;
    *what = ToString(status);
    if (CodeOf(status) != ErrorCode::kCorrupt || (*node)->Snapshot().damaged.empty())
      return Outcome::kWrong;
    outcome = Outcome::kDetected;
  }
  return outcome;
}

void Flip(const std::string& path, uint64_t bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << bit % 8)));
}

class BitFlip : public testing::TestWithParam<std::tuple<Engine, End>> {};

TEST_P(BitFlip, IsDetectedOrNotUsed) {
  const TestFolder folder("/dev/shm");
  const std::string master = folder.path() + "/master";
  const std::string copy = folder.path() + "/copy";
  const auto [engine, end] = GetParam();
  Build(master, engine, end);
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(master)) {
    // What RocksDB writes for people is never read, nor is the reserve.
    const std::string name = entry.path().filename().string();
    const bool read = !name.starts_with("LOG") && name != "RESERVE";
    if (entry.is_regular_file() && read && entry.file_size() > 0)
      files.push_back(fs::relative(entry.path(), master).string());
  }
  const char* const wanted = std::getenv("LUWU_BIT_FLIPS");
  const uint64_t flips = wanted == nullptr ? 1250 : std::strtoull(wanted, nullptr, 10);
  std::mt19937_64 random(7);
  std::map<Outcome, uint64_t> outcomes;
  for (uint64_t i = 0; i < flips; ++i) {
    const std::string& file = files[random() % files.size()];
    uint64_t bytes = fs::file_size(master + "/" + file);
    // Of an extent file, what was used: the rest has never been written.
    if (file.starts_with("extents/")) bytes = std::min<uint64_t>(bytes, 800 * kKiB);
    const uint64_t bit = random() % (bytes * 8);
    fs::remove_all(copy);
    fs::create_directories(copy + "/extents");
    for (const std::string& each : files) {
      fs::create_directories(fs::path(copy + "/" + each).parent_path());
      // Not copied, because it is large and only read; flipped back below.
      if (each.starts_with("extents/"))
        fs::create_hard_link(master + "/" + each, copy + "/" + each);
      else
        fs::copy_file(master + "/" + each, copy + "/" + each);
    }
    Flip(copy + "/" + file, bit);
    std::string what;
    const Outcome outcome = Open(copy, engine, &what);
    ASSERT_NE(outcome, Outcome::kWrong) << file << " bit " << bit << ": " << what;
    ++outcomes[outcome];
    if (file.starts_with("extents/")) Flip(copy + "/" + file, bit);
  }
  RecordProperty("detected", static_cast<int>(outcomes[Outcome::kDetected]));
  EXPECT_GT(outcomes[Outcome::kDetected], flips / 4);
  std::string what;
  EXPECT_EQ(Open(master, engine, &what), Outcome::kUnread) << what;
}

INSTANTIATE_TEST_SUITE_P(Engines, BitFlip,
                         testing::Combine(testing::Values(Engine::kExtents, Engine::kRocksdbValues),
                                          testing::Values(End::kClosed, End::kKilled)),
                         [](const auto& param) {
                           const bool extents = std::get<0>(param.param) == Engine::kExtents;
                           const bool closed = std::get<1>(param.param) == End::kClosed;
                           return fmt::format("{}{}", extents ? "Extents" : "RocksdbValues",
                                              closed ? "" : "OfAKilledProcess");
                         });

}  // namespace
}  // namespace luwu::persist
