// Random operations on a storage and on a model of it: the same points, checkpoints and bytes, also
// when it is opened again, when it is killed, and when the power fails and takes unsynced writes.
#include "tests/unit/persist/storage_model.h"

#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/unit/persist/fault_machine.h"

namespace luwu::persist {
namespace {

const std::vector<uint64_t> kShards = {300, 64 * kKiB, 150'000, 64 * kKiB + 1, 64 * kKiB - 1};

class StorageModel : public testing::TestWithParam<Engine> {};

TEST_P(StorageModel, HoldsWhatTheModelHoldsAcrossReopens) {
  const TestFolder folder("/dev/shm");
  Workload workload(1, kShards, /*logged_too=*/true);
  for (int round = 0; round < 12; ++round) {
    auto node = NodeStorage::Open(OptionsFor(folder.path(), GetParam()));
    ASSERT_TRUE(node.ok()) << node.status();
    auto job = round == 0 ? (*node)->CreateJob(Record("job"), 0) : (*node)->OpenJob("job");
    ASSERT_TRUE(job.ok()) << job.status();
    for (int step = 0; step < 25; ++step) {
      ASSERT_EQ(Compare(job->get(), workload.state(), kShards), "")
          << "round " << round << " step " << step;
      ASSERT_TRUE(workload.Step(job->get()));
    }
    ASSERT_EQ(Compare(job->get(), workload.state(), kShards), "") << "round " << round;
    EXPECT_TRUE((*node)->Snapshot().damaged.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, StorageModel,
                         testing::Values(Engine::kExtents, Engine::kRocksdbValues),
                         [](const auto& param) {
                           return param.param == Engine::kExtents ? "Extents" : "RocksdbValues";
                         });

// Runs until the power fails, and says how the storage was found afterwards: "" for as the model.
std::string CrashAndCompare(FaultMachine* machine, Workload* workload, bool lose) {
  std::mt19937_64& random = *workload->random();
  {
    auto node = machine->Open();
    if (!node.ok()) return ToString(node.status());
    auto job = (*node)->OpenJob("job");
    if (!job.ok()) job = (*node)->CreateJob(Record("job"), 0);
    if (!job.ok()) return ToString(job.status());
    machine->power()->FailAfter(static_cast<int64_t>(random() % 400));
    while (workload->Step(job->get()) && machine->power()->on()) {
    }
    (*node)->Shutdown();
  }
  if (lose) machine->LosePower(&random);
  machine->power()->On();
  auto node = machine->Open();
  if (!node.ok()) return ToString(node.status());
  auto job = (*node)->OpenJob("job");
  if (!job.ok()) return ToString(job.status());
  const std::string before = Compare(job->get(), workload->before(), kShards);
  if (before.empty()) {
    workload->Settle(workload->before());
  } else {
    const std::string after = Compare(job->get(), workload->state(), kShards);
    if (!after.empty()) return before + "; and " + after;
    workload->Settle(workload->state());
  }
  if (workload->state().points.empty()) return "";
  // What every daemon does next, and what must not disturb what the model holds.
  ModelState settled = workload->state();
  settled.points.erase(settled.points.begin(), std::prev(settled.points.end()));
  ++settled.epoch;
  const Status rolled = (*job)->RollBack(settled.points.rbegin()->second.point, settled.epoch);
  if (!rolled.ok()) return ToString(rolled);
  workload->Settle(settled);
  return Compare(job->get(), settled, kShards);
}

// RocksDB sleeps for a second after each failed flush, so that its engine gets fewer.
uint64_t Seeds(Engine engine, uint64_t usual) {
  const char* const text = std::getenv("LUWU_CRASH_SEEDS");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  return engine == Engine::kExtents ? usual : 3;
}

class Crash : public testing::TestWithParam<Engine> {};

TEST_P(Crash, LossOfPowerLeavesEverySyncedPointExact) {
  const uint64_t seeds = Seeds(GetParam(), 60);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    FaultMachine machine(GetParam());
    Workload workload(seed, kShards, /*logged_too=*/false);
    for (int crash = 0; crash < 3; ++crash) {
      ASSERT_EQ(CrashAndCompare(&machine, &workload, /*lose=*/true), "")
          << "seed " << seed << " crash " << crash;
    }
  }
}

TEST_P(Crash, TheEndOfTheProcessLeavesEveryLoggedPointExact) {
  const uint64_t seeds = Seeds(GetParam(), 20);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    FaultMachine machine(GetParam());
    Workload workload(seed + 1'000'000, kShards, /*logged_too=*/true);
    for (int crash = 0; crash < 3; ++crash) {
      ASSERT_EQ(CrashAndCompare(&machine, &workload, /*lose=*/false), "")
          << "seed " << seed << " crash " << crash;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Crash, testing::Values(Engine::kExtents, Engine::kRocksdbValues),
                         [](const auto& param) {
                           return param.param == Engine::kExtents ? "Extents" : "RocksdbValues";
                         });

}  // namespace
}  // namespace luwu::persist
