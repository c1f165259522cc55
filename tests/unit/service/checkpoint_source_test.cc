// What an export of a checkpoint reads is what an export of the live job read at that step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>

#include "server/service/checkpoint_source.h"
#include "server/service/job_tensors.h"
#include "tests/unit/step/job_schedule.h"

namespace luwu {
namespace {

using interchange::SourceBatch;
using interchange::TensorSource;
using testing::HasSubstr;

uint32_t ArraysOf(const JobSpec& spec, uint32_t layer) {
  return spec.layers[layer].trainable() ? 1 + MomentsOf(spec) : 1;
}

// One batch; waits for the device.
Status ReadOne(TensorSource* source, const TensorSource::Place& place, SourceBatch* batch) {
  const TimePoint deadline = DeadlineAfter(30'000);
  for (;;) {
    batch->Clear();
    const Status status = source->Read(place, batch);
    if (CodeOf(status) != ErrorCode::kDeadline || MillisecondsUntil(deadline) == 0) return status;
  }
}

// The whole array of a layer at its places; NaN where the source says nothing.
std::vector<float> ReadArray(TensorSource* source, uint32_t layer, uint32_t array, uint64_t step) {
  const LayerSpec& spec = source->spec().layers[layer];
  std::vector<float> whole(spec.elements, std::numeric_limits<float>::quiet_NaN());
  SourceBatch batch;
  for (uint64_t skip = 0; skip < spec.elements; skip += batch.values.size()) {
    const Status status = ReadOne(source, {layer, array, skip}, &batch);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    if (spec.trainable()) {
      EXPECT_EQ(batch.step, step);
    }
    uint64_t at = 0;
    for (const SourceBatch::Run& run : batch.runs) {
      std::copy_n(batch.values.begin() + static_cast<ptrdiff_t>(at), run.count,
                  whole.begin() + static_cast<ptrdiff_t>(run.first_element));
      at += run.count;
    }
    EXPECT_EQ(at, batch.values.size());
    EXPECT_EQ(batch.end, skip + at == spec.elements);
    if (at == 0) break;
  }
  return whole;
}

StatusOr<std::unique_ptr<CheckpointSource>> Open(
    const JobSpec& spec, const std::shared_ptr<persist::JobStorage>& storage) {
  CheckpointPlace place;
  place.spec = spec;
  place.storage = storage;
  place.nodes = fakes::NodeList(1);
  place.name = "kept";
  return CheckpointSource::Open(std::move(place));
}

void ExpectEqualToLive(JobSchedule* schedule,
                       const std::shared_ptr<fakes::MemoryStorage>& storage) {
  Job& job = schedule->world().job();
  const persist::Point point = storage->Points().back();
  ASSERT_EQ(point.step, job.current_step());
  ASSERT_TRUE(storage->CreateCheckpoint({"kept", point, 1}).ok());
  const auto opened = Open(job.spec(), storage);
  ASSERT_TRUE(opened.ok()) << opened.status();
  CheckpointSource& stored = **opened;
  JobSource live(schedule->world().job_ptr());
  ASSERT_EQ(stored.moments(), live.moments());
  for (uint32_t layer = 0; layer < job.spec().layers.size(); ++layer) {
    for (uint32_t array = 0; array < ArraysOf(job.spec(), layer); ++array) {
      const std::vector<float> a = ReadArray(&live, layer, array, point.step);
      const std::vector<float> b = ReadArray(&stored, layer, array, point.step);
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
          << "layer " << layer << " array " << array;
    }
  }
  const StartPoint now = job.WhereItStands();
  const StartPoint then = stored.WhereItStands();
  EXPECT_EQ(then.step, now.step);
  EXPECT_EQ(then.loss_scale, now.loss_scale);
  EXPECT_EQ(then.finite_run, now.finite_run);
  EXPECT_EQ(then.applied, now.applied);
}

TEST(CheckpointSource, EveryOptimizerAndFormatReadsAsTheLiveJobDid) {
  uint64_t split = 0;
  uint64_t blockwise = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    JobSpec spec = RandomSpec(random);
    AddLayers(random, 6, &spec);
    if (seed % 4 != 0) RandomizeState(random, &spec);
    spec.durable_every = 1;
    spec.durability = Durability::kSynced;
    if (random() % 2 == 0) spec.memory_bytes = TightMemory(spec, random);
    split += spec.optimizer.master_format == MasterFormat::kSplit;
    blockwise += spec.optimizer.state_precision == StatePrecision::kBlockwise8;
    const auto storage = std::make_shared<fakes::MemoryStorage>();
    JobSchedule schedule(spec, {.seed = seed, .order_seed = 1, .steps = 3, .storage = storage});
    schedule.Run();
    if (testing::Test::HasFatalFailure()) return;
    ExpectEqualToLive(&schedule, storage);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GE(split, 5u);
  EXPECT_GE(blockwise, 5u);
}

// A checkpoint of 40 shards of one layer, as it was loaded: element i is i.
class KeptWeights : public testing::Test {
 protected:
  static constexpr uint64_t kElements = 40 * 64 - 7;

  void SetUp() override {
    JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("one", kElements)});
    spec.durable_every = 1;
    world_ = std::make_unique<fakes::JobWorld>(spec, 1 << 30, storage_);
    ASSERT_TRUE(world_->status().ok()) << world_->status();
    world_->LoadAll([](uint32_t, uint64_t element) { return float(element); });
    worker_ = world_->Join(0);
    ASSERT_TRUE(world_->job().MakePoint(0).ok());
    const TimePoint deadline = DeadlineAfter(30'000);
    while (storage_->Points().empty() && MillisecondsUntil(deadline) > 0) std::this_thread::yield();
    ASSERT_FALSE(storage_->Points().empty());
    ASSERT_TRUE(storage_->CreateCheckpoint({"kept", storage_->Points()[0], 1}).ok());
    auto opened = Open(spec, storage_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    source_ = *std::move(opened);
  }

  const std::shared_ptr<fakes::MemoryStorage> storage_ = std::make_shared<fakes::MemoryStorage>();
  std::unique_ptr<fakes::JobWorld> world_;
  std::unique_ptr<fakes::FakeWorker> worker_;
  std::unique_ptr<CheckpointSource> source_;
  SourceBatch batch_;
};

TEST_F(KeptWeights, EachGenerationIsReadOnceWhenAllArraysOfAPieceAreReadTogether) {
  const uint64_t before = storage_->reads();
  uint64_t skip = 0;
  do {
    for (uint32_t array = 0; array < 3; ++array) {
      ASSERT_TRUE(ReadOne(source_.get(), {0, array, skip}, &batch_).ok());
      ASSERT_EQ(batch_.values[0], array == 0 ? float(skip) : 0.0f);
    }
    skip += batch_.values.size();
  } while (!batch_.end);
  EXPECT_EQ(skip, kElements);
  EXPECT_EQ(storage_->reads() - before, 40u);
}

TEST_F(KeptWeights, ASlowDeviceIsWaitedForAndADamagedShardIsNamed) {
  storage_->Hold(true);
  EXPECT_EQ(CodeOf(source_->Read({0, 0, 0}, &batch_)), ErrorCode::kDeadline);
  EXPECT_EQ(CodeOf(source_->Read({0, 0, 200}, &batch_)), ErrorCode::kDeadline) << "another shard";
  storage_->Hold(false);
  ASSERT_TRUE(ReadOne(source_.get(), {0, 0, 200}, &batch_).ok());
  EXPECT_EQ(batch_.values[0], 200.0f);
  EXPECT_EQ(batch_.values.size(), 256u - 200u);
  ASSERT_TRUE(ReadOne(source_.get(), {0, 0, 39 * 64}, &batch_).ok());  // nothing is read ahead
  storage_->FailReads(1);
  const Status damaged = ReadOne(source_.get(), {0, 0, 30 * 64}, &batch_);
  EXPECT_EQ(CodeOf(damaged), ErrorCode::kCorrupt);
  EXPECT_THAT(MessageOf(damaged), HasSubstr("shard 30"));
}

TEST_F(KeptWeights, NobodyDeletesItWhileItIsReadOrATransferIsUnderWay) {
  EXPECT_EQ(CodeOf(storage_->DeleteCheckpoint("kept")), ErrorCode::kState);
  storage_->Hold(true);
  EXPECT_EQ(CodeOf(source_->Read({0, 0, 0}, &batch_)), ErrorCode::kDeadline);
  source_.reset();
  EXPECT_EQ(CodeOf(storage_->DeleteCheckpoint("kept")), ErrorCode::kState);
  storage_->Hold(false);
  const TimePoint deadline = DeadlineAfter(30'000);
  Status deleted = storage_->DeleteCheckpoint("kept");
  while (!deleted.ok() && MillisecondsUntil(deadline) > 0) {
    std::this_thread::yield();
    deleted = storage_->DeleteCheckpoint("kept");
  }
  EXPECT_TRUE(deleted.ok()) << deleted;
}

TEST_F(KeptWeights, AnotherJobsShardsAreRefused) {
  JobSpec other = source_->spec();
  other.layers = {fakes::Layer("one", kElements + 64)};
  EXPECT_THAT(MessageOf(Open(other, storage_).status()), HasSubstr("40 shards are stored"));
  other = source_->spec();
  other.optimizer.state_precision = StatePrecision::kBFloat16;
  EXPECT_THAT(MessageOf(Open(other, storage_).status()), HasSubstr("bytes on disk, not"));
}

}  // namespace
}  // namespace luwu
