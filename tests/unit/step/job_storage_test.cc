// Jobs whose state does not fit into memory, and jobs that come back from a point: against the
// brute-force model and against jobs in memory, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "server/step/memory_plan.h"
#include "server/store/residency_plan.h"
#include "tests/unit/step/job_schedule.h"

namespace luwu {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kSeeds = 20;
#else
constexpr uint32_t kSeeds = 100;
#endif

TEST(JobStorage, AJobThatSpillsEqualsTheModel) {
  uint64_t spilling = 0;
  uint64_t windows = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    JobSpec spec = RandomSpec(random);
    AddLayers(random, 10, &spec);
    spec.memory_bytes = TightMemory(spec, random);
    const auto storage = std::make_shared<fakes::MemoryStorage>();
    JobSchedule schedule(spec, {.seed = seed, .order_seed = seed, .steps = 5, .storage = storage});
    schedule.Run();
    if (testing::Test::HasFatalFailure()) return;
    const JobFootprint used = schedule.world().job().Snapshot().footprint;
    EXPECT_LE(used.total(), spec.memory_bytes);
    spilling += storage->payloads() > 0;
    windows += schedule.world().job().shard_map().has_window();
  }
  EXPECT_GE(spilling, kSeeds / 4);
  EXPECT_GE(windows, kSeeds / 10);
}

TEST(JobStorage, EveryOptimizerAndFormatSpillsWithEqualBits) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(2000 + seed);
    JobSpec spec = RandomSpec(random);
    AddLayers(random, 10, &spec);
    RandomizeState(random, &spec);
    ScheduleOptions options = {.seed = seed, .order_seed = 1, .steps = 4};
    JobSchedule in_memory(spec, options);
    in_memory.Run();
    spec.memory_bytes = TightMemory(spec, random);
    options.order_seed = 2;
    options.storage = std::make_shared<fakes::MemoryStorage>();
    JobSchedule spilled(spec, options);
    spilled.Run();
    if (testing::Test::HasFatalFailure()) return;
    const std::vector<float> a = in_memory.State();
    const std::vector<float> b = spilled.State();
    ASSERT_EQ(a.size(), b.size());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  }
}

TEST(JobStorage, AfterCrashesTheJobGoesOnFromTheNewestPointAndEqualsTheModel) {
  uint64_t crashes = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(4000 + seed);
    JobSpec spec = RandomSpec(random);
    AddLayers(random, 10, &spec);
    if (seed % 4 != 0) RandomizeState(random, &spec);
    spec.durable_every = 1 + random() % 3;
    spec.durability = static_cast<Durability>(1 + random() % 3);
    if (random() % 2 == 0) spec.memory_bytes = TightMemory(spec, random);
    const auto storage = std::make_shared<fakes::MemoryStorage>();
    JobSchedule schedule(
        spec, {.seed = seed, .order_seed = seed, .steps = 6, .storage = storage, .crashes = true});
    schedule.Run();
    if (testing::Test::HasFatalFailure()) return;
    crashes += schedule.crashes();
  }
  EXPECT_GE(crashes, kSeeds);
}

// ---- one job with many shards and little memory
// ---------------------------------------------------

JobSpec WideSpec(uint32_t layers) {
  std::vector<LayerSpec> table;
  for (uint32_t i = 0; i < layers; ++i) {
    table.push_back(fakes::Layer("l" + std::to_string(i), 64));
  }
  JobSpec spec = fakes::SmallSpec(1, std::move(table));
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const JobFootprint footprint = FootprintOf(spec, map);
  spec.memory_bytes = footprint.total() - footprint.state_bytes + LeastRoomBytes(spec, map);
  return spec;
}

struct WideJob {
  explicit WideJob(const JobSpec& spec)
      : storage(std::make_shared<fakes::MemoryStorage>()), world(spec, 1 << 30, storage) {
    world.LoadAll([](uint32_t layer, uint64_t element) { return float(layer + element); });
    worker = world.Join(0);
    EXPECT_TRUE(worker->open_status().ok());
  }
  // Every layer but the `absent` ones gets a gradient of ones.
  void Push(uint64_t step, const std::vector<uint32_t>& absent = {}) {
    EXPECT_TRUE(worker->Begin(step, {fakes::AdamHyper()}).ok());
    for (uint32_t layer = 0; layer < world.job().spec().layers.size(); ++layer) {
      const bool given = std::find(absent.begin(), absent.end(), layer) == absent.end();
      worker->Send({step, layer, 0, 0, true, false, given ? &ones : nullptr}, worker->AwaitSlot());
    }
  }
  StatusOr<CommitResult> Commit(uint64_t step, uint64_t timeout_ms = 60000) {
    fakes::CommitWait wait;
    world.job().AwaitCommit(worker->session_ptr(), step, world.clock().AfterMs(timeout_ms),
                            wait.Callback());
    return wait.Wait();
  }

  const std::vector<float> ones = std::vector<float>(64, 1.0f);
  std::shared_ptr<fakes::MemoryStorage> storage;
  fakes::JobWorld world;
  std::unique_ptr<fakes::FakeWorker> worker;
};

TEST(JobStorage, LayersWithoutAGradientDoNotKeepTheBuffers) {
  WideJob job(WideSpec(40));
  ASSERT_TRUE(job.world.status().ok()) << ToString(job.world.status());
  std::vector<uint32_t> absent(30);
  for (uint32_t i = 0; i < absent.size(); ++i) absent[i] = 10 + i;
  const uint64_t loaded = job.world.job().Snapshot().tiers.spill.stores;
  for (uint64_t step = 0; step < 6; ++step) {
    job.Push(step, absent);
    ASSERT_TRUE(job.Commit(step).ok());
  }
  const SpillCounters counters = job.world.job().Snapshot().tiers.spill;
  EXPECT_EQ(counters.stores - loaded, 6u * 10);
}

// Less memory than two versions of the served copies take.
JobSpec WindowSpec(uint32_t layers) {
  JobSpec spec = WideSpec(layers);
  spec.memory_bytes = 0;
  const Placement placement(fakes::NodeList(1), spec);
  spec.memory_bytes = LeastMemoryPlan(spec, placement, 0, true).footprint.total();
  return spec;
}

TEST(JobStorage, ServedCopiesThatDoNotFitAreBroughtIntoMemoryWhenTheyAreWanted) {
  WideJob job(WindowSpec(60));
  ASSERT_TRUE(job.world.status().ok()) << ToString(job.world.status());
  ASSERT_EQ(job.world.job().shard_map().window_slots(), 8u);
  const Job& same = job.world.job();
  EXPECT_LE(same.Snapshot().footprint.total(), same.spec().memory_bytes);
  for (uint64_t step = 0; step < 3; ++step) {
    job.Push(step);
    ASSERT_TRUE(job.Commit(step).ok());
    for (uint32_t layer = 0; layer < 60; ++layer) {
      const auto masters = *job.world.ReadLayer(layer, Quantity::kMaster);
      const fakes::FakeWorker::Copy copy = job.worker->ReadCopy(layer, step + 1);
      EXPECT_EQ(copy.header.version, step + 1);
      EXPECT_EQ(copy.header.payload_crc32c, Crc32c(copy.payload));
      ASSERT_EQ(std::memcmp(copy.payload.data(), masters.data(), copy.payload.size()), 0) << layer;
    }
    // A worker that comes back may still need what the step began with.
    const auto before = job.worker->ReadCopy(30, step);
    EXPECT_EQ(before.header.version, step);
    EXPECT_EQ(before.header.payload_crc32c, Crc32c(before.payload));
  }
}

TEST(JobStorage, AWishForAShardThatIsNotThereEndsTheSession) {
  WideJob job(WindowSpec(60));
  job.worker->Ring(WantOf(60, 0));
  EXPECT_EQ(job.worker->board().fault(), ErrorCode::kInvalidArgument);
  EXPECT_NE(job.worker->board().fault_text().find("shard 60 of 60"), std::string::npos)
      << job.worker->board().fault_text();
}

TEST(JobStorage, AWishToAJobWithoutAWindowEndsTheSession) {
  WideJob job(WideSpec(12));
  job.worker->Ring(WantOf(0, 0));
  EXPECT_EQ(job.worker->board().fault(), ErrorCode::kInvalidArgument);
}

TEST(JobStorage, SplitMastersNeedTheirServedCopiesInMemoryAndTheRefusalSaysSo) {
  JobSpec spec = WindowSpec(60);
  spec.served_dtype = DType::kBFloat16;
  spec.optimizer.master_format = MasterFormat::kSplit;
  fakes::JobWorld world(spec, 1 << 30, std::make_shared<fakes::MemoryStorage>());
  EXPECT_EQ(CodeOf(world.status()), ErrorCode::kResourceExhausted);
  EXPECT_NE(MessageOf(world.status()).find("split masters stay in memory"), std::string::npos)
      << ToString(world.status());
}

// Two workers; the second one's restart takes back what had made shards complete, and these must
// not keep the buffers that others wait for.
TEST(JobStorage, ShardsThatARestartReopensGiveTheirBuffersBack) {
  JobSpec spec = WideSpec(40);
  spec.world_size = 2;
  spec.slots_per_worker = 16;
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const JobFootprint footprint = FootprintOf(spec, map);
  spec.memory_bytes = footprint.total() - footprint.state_bytes + LeastRoomBytes(spec, map);
  WideJob job(spec);
  auto second = job.world.Join(1);
  const auto send = [&](fakes::FakeWorker& worker, uint32_t layer) {
    worker.Send({0, layer, 0, 0, true, false, &job.ones}, worker.AwaitSlot());
  };
  job.storage->Hold(true);  // whatever is asked for stays on its way
  ASSERT_TRUE(job.worker->Begin(0, {fakes::AdamHyper()}).ok());
  ASSERT_TRUE(second->Begin(0, {fakes::AdamHyper()}).ok());
  for (uint32_t layer = 0; layer < 10; ++layer) {
    send(*job.worker, layer);
    send(*second, layer);
  }
  second.reset();
  second = job.world.Join(1, 1);
  ASSERT_TRUE(second->open_status().ok()) << ToString(second->open_status());
  ASSERT_TRUE(second->Begin(0, {fakes::AdamHyper()}).ok());
  job.storage->Hold(false);
  // The other way round: what is complete now is not what was asked for first.
  for (uint32_t layer = 40; layer-- > 0;) {
    send(*second, layer);
    if (layer >= 10) send(*job.worker, layer);
  }
  const StatusOr<CommitResult> result = job.Commit(0);
  ASSERT_TRUE(result.ok()) << ToString(result.status());
}

TEST(JobStorage, StateThatCannotBeReadFailsTheJobAndNamesIt) {
  WideJob job(WideSpec(40));
  job.storage->FailReads(1);
  job.Push(0);
  const StatusOr<CommitResult> result = job.Commit(0);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, Outcome::kFailed);
  EXPECT_NE(result->culprit.find("cannot be read"), std::string::npos) << result->culprit;
  EXPECT_EQ(job.world.job().Snapshot().state, JobState::kFailed);
}

TEST(JobStorage, ADiskThatDoesNotAnswerHoldsTheStepBackAndLosesNothing) {
  WideJob job(WideSpec(12));
  job.storage->Hold(true);
  ASSERT_TRUE(job.worker->Begin(0, {fakes::AdamHyper()}).ok());
  uint32_t sent = 0;
  while (job.worker->FreeSlot() && sent < 12) {
    job.worker->Send({0, sent, 0, 0, true, false, &job.ones}, *job.worker->FreeSlot());
    ++sent;
  }
  EXPECT_LE(sent, 8u);  // slots and what was read ahead; then the worker waits
  fakes::CommitWait late;
  job.world.job().AwaitCommit(job.worker->session_ptr(), 0, job.world.clock().AfterMs(10),
                              late.Callback());
  job.world.Pass(100);
  EXPECT_EQ(CodeOf(late.Wait().status()), ErrorCode::kDeadline);
  job.storage->Hold(false);
  for (; sent < 12; ++sent) {
    job.worker->Send({0, sent, 0, 0, true, false, &job.ones}, job.worker->AwaitSlot());
  }
  const StatusOr<CommitResult> result = job.Commit(0);
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  EXPECT_EQ(result->outcome, Outcome::kApplied);
}

TEST(JobStorage, ACommitAnswersWithTheLevelItHasReached) {
  JobSpec spec = WideSpec(12);
  spec.durable_every = 2;
  spec.durability = Durability::kSynced;
  WideJob job(spec);
  const Durability expected[] = {Durability::kMemory, Durability::kSynced, Durability::kMemory,
                                 Durability::kSynced};
  for (uint64_t step = 0; step < 4; ++step) {
    job.Push(step);
    const StatusOr<CommitResult> result = job.Commit(step);
    ASSERT_TRUE(result.ok()) << ToString(result.status());
    EXPECT_EQ(result->durability, expected[step]) << step;
  }
  EXPECT_EQ(job.world.job().durable_point()->step, 4u);
  EXPECT_EQ(job.storage->Points().back().step, 4u);
}

TEST(JobStorage, WhatCannotBeStoredIsNotCalledDurable) {
  JobSpec spec = WideSpec(12);
  spec.durable_every = 1;
  spec.durability = Durability::kSynced;
  WideJob job(spec);
  job.Push(0);
  ASSERT_TRUE(job.Commit(0).ok());
  job.storage->FailCommits(true);
  job.Push(1);
  const StatusOr<CommitResult> result = job.Commit(1);
  EXPECT_EQ(CodeOf(result.status()), ErrorCode::kJobFailed);
  EXPECT_NE(MessageOf(result.status()).find("not stored: node 'n0': the device failed"),
            std::string::npos)
      << ToString(result.status());
  EXPECT_EQ(job.storage->Points().back().step, 1u);
}

TEST(JobStorage, APointOfTheOpenStepIsMadeWhileItsGradientsComeIn) {
  JobSpec spec = WideSpec(12);
  WideJob job(spec);
  job.Push(0);
  ASSERT_TRUE(job.Commit(0).ok());
  EXPECT_EQ(CodeOf(job.world.job().MakePoint(3)), ErrorCode::kStepMismatch);
  ASSERT_TRUE(job.worker->Begin(1, {fakes::AdamHyper()}).ok());
  for (uint32_t layer = 0; layer < 6; ++layer) {
    job.worker->Send({1, layer, 0, 0, true, false, &job.ones}, job.worker->AwaitSlot());
  }
  ASSERT_TRUE(job.world.job().MakePoint(1).ok());
  ASSERT_TRUE(job.world.job().MakePoint(1).ok());  // the same one
  for (uint32_t layer = 6; layer < 12; ++layer) {
    job.worker->Send({1, layer, 0, 0, true, false, &job.ones}, job.worker->AwaitSlot());
  }
  ASSERT_TRUE(job.Commit(1).ok());
  const TimePoint deadline = DeadlineAfter(30000);
  while (!job.world.job().durable_point() && MillisecondsUntil(deadline) > 0) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(job.world.job().durable_point());
  const auto after = *job.world.ReadLayer(0, Quantity::kMaster);
  job.worker.reset();
  job.world.Crash(*job.world.job().durable_point());
  ASSERT_TRUE(job.world.status().ok());
  EXPECT_EQ(job.world.job().current_step(), 1u);
  const auto before = *job.world.ReadLayer(0, Quantity::kMaster);
  EXPECT_NE(before, after);
  EXPECT_LT(std::abs(before[7] - 7), 0.02f);  // one update of lr 0.01 and decay
}

}  // namespace
}  // namespace luwu
