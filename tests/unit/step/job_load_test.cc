// Memory, loading and reading: what is refused and why, and what readers see during a step.
#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "server/step/memory_plan.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::AdamHyper;
using fakes::CommitWait;
using fakes::JobWorld;

void ExpectError(const Status& status, ErrorCode code, const std::vector<std::string>& words) {
  EXPECT_EQ(CodeOf(status), code) << ToString(status);
  for (const std::string& word : words) {
    EXPECT_NE(MessageOf(status).find(word), std::string::npos)
        << word << " in: " << MessageOf(status);
  }
}

JobSpec OneLayer(bool undo = true) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 100)});
  spec.keep_undo_state = undo;
  if (!undo) spec.on_non_finite = NonFinitePolicy::kFail;
  return spec;
}

TEST(JobMemory, TheFootprintCountsEveryPart) {
  JobSpec spec = OneLayer();
  spec.world_size = 3;
  spec.overflow_bytes = 1000;  // three blocks of 64 floats
  const JobWorld world(spec);
  ASSERT_TRUE(world.status().ok());
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const JobFootprint footprint = FootprintOf(spec, map);
  // 64 and 36 elements, the latter padded to 48; three arrays, two generations.
  EXPECT_EQ(footprint.state_bytes, (64u + 48u) * 4 * 3 * 2);
  EXPECT_EQ(footprint.served_bytes, map.weights_bytes());
  EXPECT_EQ(footprint.inbox_bytes, 3 * map.inbox_bytes());
  EXPECT_EQ(footprint.overflow_bytes, 3u * 64 * 4);
  EXPECT_EQ(footprint.held_bytes, 0u);
  EXPECT_EQ(footprint.total(), footprint.state_bytes + footprint.served_bytes +
                                   footprint.inbox_bytes + footprint.overflow_bytes +
                                   footprint.table_bytes);
  spec.world_size = 1000;
  // What is known of a rank takes at least 40 bytes for each shard.
  EXPECT_GE(FootprintOf(spec, map).table_bytes, footprint.table_bytes + 2u * 997 * 40);
}

TEST(JobMemory, RunningSumsAndNamesAreCounted) {
  JobSpec spec = OneLayer();
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const JobFootprint plain = FootprintOf(spec, map);
  spec.accumulates = true;
  EXPECT_EQ(FootprintOf(spec, map).held_bytes, plain.held_bytes + (64u + 48u) * 4);
  spec.layers[0].tensors[0].name.assign(500, 'n');
  EXPECT_GE(FootprintOf(spec, map).table_bytes, plain.table_bytes + 490);
}

TEST(JobMemory, HeldSumsAreCountedAndDeferredUpdatesNeedOneGeneration) {
  JobSpec spec = OneLayer();
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const uint64_t immediate = FootprintOf(spec, map).state_bytes;
  spec.update_mode = UpdateMode::kSpeculative;
  EXPECT_EQ(FootprintOf(spec, map).state_bytes, immediate);
  EXPECT_EQ(FootprintOf(spec, map).held_bytes, (64u + 48u) * 4);
  spec.update_mode = UpdateMode::kDeferred;
  EXPECT_EQ(FootprintOf(spec, map).state_bytes, immediate / 2);
  spec.held_dtype = DType::kBFloat16;
  EXPECT_EQ(FootprintOf(spec, map).held_bytes, (64u + 64u) * 2);
  const uint64_t needed = FootprintOf(spec, map).total();
  ExpectError(JobWorld(spec, needed - 1).status(), ErrorCode::kResourceExhausted,
              {"gradient sums " + HumanBytes(256), HumanBytes(needed)});
  EXPECT_TRUE(JobWorld(spec, needed).status().ok());
}

TEST(JobMemory, EachFormatTakesItsOwnBytes) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 640)});
  spec.shard_elements = 640;
  spec.served_dtype = DType::kBFloat16;
  spec.update_mode = UpdateMode::kDeferred;
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const auto bytes = [&](StatePrecision precision, MasterFormat master) {
    spec.optimizer.state_precision = precision;
    spec.optimizer.master_format = master;
    return FootprintOf(spec, map).state_bytes;
  };
  EXPECT_EQ(bytes(StatePrecision::kFloat32, MasterFormat::kFloat32), 640u * 12);
  EXPECT_EQ(bytes(StatePrecision::kFloat32, MasterFormat::kSplit), 640u * 10);
  EXPECT_EQ(bytes(StatePrecision::kBFloat16, MasterFormat::kSplit), 640u * 6);
  // A scale for each of at most 6 blocks, on cache lines.
  EXPECT_EQ(bytes(StatePrecision::kBlockwise8, MasterFormat::kSplit), 640u * 4 + 2 * 64);
}

TEST(JobMemory, TheBudgetIsTakenAndGivenBack) {
  const JobSpec spec = OneLayer();
  JobWorld world(spec);
  const uint64_t needed = world.job().Snapshot().footprint.total();
  EXPECT_EQ(world.budget().used(), needed);
  {
    JobOptions options;
    options.spec = spec;
    options.nodes = fakes::NodeList(1);
    auto second = Job::Create(std::move(options), world.environment(),
                              std::make_unique<fakes::FakeReporter>(&world.decider()));
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(world.budget().used(), 2 * needed);
  }
  EXPECT_EQ(world.budget().used(), needed);
}

TEST(JobMemory, AJobThatDoesNotFitIsRefusedWithNumbers) {
  const JobSpec spec = OneLayer();
  const ShardMap map(spec, Placement(fakes::NodeList(1), spec), 0);
  const uint64_t needed = FootprintOf(spec, map).total();
  const JobWorld world(spec, needed - 1);
  ExpectError(world.status(), ErrorCode::kResourceExhausted,
              {"job 'job' on node 'n0'", HumanBytes(needed), HumanBytes(needed - 1),
               "optimizer state " + HumanBytes(FootprintOf(spec, map).state_bytes),
               "a budget of " + HumanBytes(needed) + " would do"});
  EXPECT_TRUE(JobWorld(spec, needed).status().ok());
}

TEST(JobLoad, RefusesWhatDoesNotFitTheSchema) {
  JobWorld world(OneLayer());
  const std::vector<float> values(65, 1.0f);
  const auto some = [&](size_t count) { return std::span<const float>(values).first(count); };
  ExpectError(world.job().Load(1, 0, 0, some(1)), ErrorCode::kInvalidArgument, {"layer 1"});
  ExpectError(world.job().Load(0, 2, 0, some(1)), ErrorCode::kInvalidArgument, {"shard 2"});
  ExpectError(world.job().Load(0, 0, 0, some(65)), ErrorCode::kInvalidArgument, {"64 elements"});
  ExpectError(world.job().Load(0, 1, 36, some(1)), ErrorCode::kInvalidArgument, {"36 elements"});
  ExpectError(world.job().Load(0, 1, ~uint64_t{0}, some(2)), ErrorCode::kInvalidArgument, {});
  EXPECT_TRUE(world.job().Load(0, 1, 36, some(0)).ok());
}

TEST(JobLoad, MissingElementsAreNamedUnlessAllowed) {
  JobWorld world(OneLayer());
  const std::vector<float> values(64, 2.0f);
  ASSERT_TRUE(world.job().Load(0, 0, 0, values).ok());
  ASSERT_TRUE(world.job().Load(0, 1, 20, std::span(values).first(16)).ok());
  ASSERT_TRUE(world.job().Load(0, 1, 0, std::span(values).first(19)).ok());
  ExpectError(world.job().FinishLoad(false), ErrorCode::kState,
              {"tensor 'a.weight'", "layer 0 'a'", "shard 1", "allow_missing"});
  EXPECT_FALSE(world.job().loaded());
  EXPECT_TRUE(world.job().FinishLoad(true).ok());
  EXPECT_TRUE(world.job().loaded());
  EXPECT_EQ((*world.ReadLayer(0, Quantity::kMaster))[64 + 19], 0.0f);
  EXPECT_EQ((*world.ReadLayer(0, Quantity::kMaster))[64 + 18], 2.0f);
}

TEST(JobLoad, NothingBeginsAndNothingIsReadBeforeTheWeightsAreLoaded) {
  JobWorld world(OneLayer());
  const auto worker = world.Join(0);
  ExpectError(worker->Begin(0, {AdamHyper()}), ErrorCode::kState, {"not loaded"});
  ExpectError(world.ReadLayer(0, Quantity::kMaster).status(), ErrorCode::kState, {"no weights"});
  EXPECT_EQ(worker->board().published(0), 0u);
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  EXPECT_EQ(worker->board().published(0), 1u);
  EXPECT_TRUE(worker->Begin(0, {AdamHyper()}).ok());
}

TEST(JobLoad, ALoaderThatWasRestartedMayLoadAgainUntilStepZeroBegins) {
  JobWorld world(OneLayer());
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  world.LoadAll([](uint32_t, uint64_t element) { return float(element); });
  EXPECT_EQ((*world.ReadLayer(0, Quantity::kMaster))[70], 70.0f);
  const auto worker = world.Join(0);
  ASSERT_TRUE(worker->Begin(0, {AdamHyper()}).ok());
  const std::vector<float> values(1, 2.0f);
  ExpectError(world.job().Load(0, 0, 0, values), ErrorCode::kState, {"training at step 0"});
  EXPECT_TRUE(world.job().FinishLoad(false).ok()) << "saying it again is harmless";
}

TEST(JobLoad, ScatteredLoadsAreBounded) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 1 << 14)});
  spec.shard_elements = 1 << 14;
  JobWorld world(spec);
  const std::vector<float> one(1, 1.0f);
  Status status;
  uint64_t offset = 0;
  for (; status.ok() && offset < (1 << 14); offset += 2)
    status = world.job().Load(0, 0, offset, one);
  ExpectError(status, ErrorCode::kResourceExhausted, {"4096 scattered pieces"});
}

TEST(JobRead, RefusesWhatThereIsNot) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 10), fakes::Layer("ice", 10, false)});
  spec.optimizer.kind = OptimizerKind::kSgd;
  JobWorld world(spec);
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  ExpectError(world.ReadLayer(2, Quantity::kMaster).status(), ErrorCode::kInvalidArgument, {});
  ExpectError(world.ReadLayer(0, Quantity::kMoment1).status(), ErrorCode::kInvalidArgument,
              {"first moment", "optimizer keeps none"});
  ExpectError(world.ReadLayer(1, Quantity::kMoment2).status(), ErrorCode::kInvalidArgument,
              {"frozen"});
  EXPECT_EQ(world.ReadLayer(1, Quantity::kMaster)->size(), 10u);
}

// Masters come back as they were loaded, to the last bit, and moments in fp32, from every format.
TEST(JobRead, EveryFormatIsReadAsFloat32) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd,
                                   OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    for (const StatePrecision precision :
         {StatePrecision::kFloat32, StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
      for (const bool undo : {true, false}) {
        SCOPED_TRACE(testing::Message() << OptimizerName(kind) << " " << int(precision));
        LayerSpec mixed;
        mixed.name = "mixed";
        mixed.elements = 700;
        mixed.tensors = {fakes::Tensor("w", 300, 0), fakes::Tensor("frozen", 100, 310, false),
                         fakes::Tensor("v", 280, 420)};
        JobSpec spec = fakes::SmallSpec(1, {mixed, fakes::Layer("ice", 100, false)});
        spec.shard_elements = 640;
        spec.served_dtype = DType::kBFloat16;
        spec.optimizer.kind = kind;
        spec.optimizer.state_precision = precision;
        spec.optimizer.master_format = MasterFormat::kSplit;
        spec.optimizer.amsgrad =
            kind == OptimizerKind::kAdam && precision != StatePrecision::kBlockwise8;
        spec.optimizer.sgd_momentum = kind == OptimizerKind::kSgd;
        if (kind == OptimizerKind::kAdagrad) spec.optimizer.initial_accumulator = 0.25;
        spec.keep_undo_state = undo;
        if (!undo) spec.on_non_finite = NonFinitePolicy::kFail;
        JobWorld world(spec);
        const auto value = [](uint32_t layer, uint64_t element) {
          const bool gap = layer == 0 &&
                           ((element >= 300 && element < 310) || (element >= 410 && element < 420));
          return gap ? 0.0f : 0.1f + float(element) / 977;
        };
        world.LoadAll(value);
        for (uint32_t layer = 0; layer < 2; ++layer) {
          const auto masters = world.ReadLayer(layer, Quantity::kMaster);
          ASSERT_TRUE(masters.ok());
          for (uint64_t i = 0; i < masters->size(); ++i) {
            ASSERT_EQ((*masters)[i], value(layer, i)) << layer << " " << i;
          }
        }
        const bool third = spec.optimizer.amsgrad;
        EXPECT_EQ(world.ReadLayer(0, Quantity::kMoment3).ok(), third);
        const bool second = kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam;
        EXPECT_EQ(world.ReadLayer(0, Quantity::kMoment2).ok(), second);
        const auto first = world.ReadLayer(0, Quantity::kMoment1);
        ASSERT_TRUE(first.ok());
        EXPECT_EQ((*first)[5], kind == OptimizerKind::kAdagrad ? 0.25f : 0.0f);
        EXPECT_EQ((*first)[699], kind == OptimizerKind::kAdagrad ? 0.25f : 0.0f);
        EXPECT_EQ((*first)[350], 0.0f) << "frozen";
      }
    }
  }
}

// The upper half of a split master is the served copy, whose buffer is written again two versions
// later, also when the state is not: by a step in which the shard is absent.
TEST(JobRead, AReaderOfSplitMastersHoldsTheServedCopyToo) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 128), fakes::Layer("b", 64)});
  spec.served_dtype = DType::kBFloat16;
  spec.optimizer.master_format = MasterFormat::kSplit;
  JobWorld world(spec);
  world.LoadAll([](uint32_t, uint64_t element) { return 1 + float(element) / 977; });
  const auto worker = world.Join(0);
  const std::vector<float> good(128, 100.0f);
  CommitWait waits[2];
  const auto play = [&](uint64_t step, const std::vector<float>* gradient) {
    ASSERT_TRUE(worker->Begin(step, {AdamHyper(0.5)}).ok());
    for (uint32_t shard = 0; shard < 2; ++shard) {
      worker->Send({step, 0, shard, 0, true, false, gradient});
    }
    worker->Send({step, 1, 0, 0, true, false, &good});
    world.job().AwaitCommit(worker->session_ptr(), step, TimePoint::max(), waits[step].Callback());
  };
  const std::vector<float> before = *world.ReadLayer(0, Quantity::kMaster);
  std::promise<void> entered;
  std::promise<void> go_on;
  std::vector<float> seen;
  auto read = std::async(std::launch::async, [&] {
    return world.job().Read({0, Quantity::kMaster}, DeadlineAfter(30000),
                            [&](const Job::Piece& piece) {
                              if (piece.shard == 0) {
                                entered.set_value();
                                go_on.get_future().wait();
                              }
                              seen.insert(seen.end(), piece.values.begin(), piece.values.end());
                              return OkStatus();
                            });
  });
  entered.get_future().wait();
  play(0, &good);  // version 1, in the other buffer
  ASSERT_TRUE(waits[0].Wait().ok());
  play(1, nullptr);  // version 2 is version 1 in the reader's buffer
  while (world.job().Snapshot().updates < 4) std::this_thread::yield();  // layer b is updated
  EXPECT_FALSE(waits[1].answered());
  go_on.set_value();
  ASSERT_TRUE(read.get().ok());
  EXPECT_EQ(seen, before);
  ASSERT_TRUE(waits[1].Wait().ok());
}

TEST(JobRead, ASinkThatFailsEndsTheRead) {
  JobWorld world(OneLayer());
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  int calls = 0;
  const Status status =
      world.job().Read({0, Quantity::kMaster}, DeadlineAfter(1000), [&](const Job::Piece&) {
        ++calls;
        return Error(ErrorCode::kCancelled, "enough");
      });
  EXPECT_EQ(CodeOf(status), ErrorCode::kCancelled);
  EXPECT_EQ(calls, 1);
}

class Step {
 public:
  explicit Step(JobWorld& world) : world_(world), worker_(world.Join(0)), gradient_(100, 1.0f) {}
  void Push(uint64_t step, uint32_t shard) {
    ASSERT_TRUE(worker_->Begin(step, {AdamHyper()}).ok());
    worker_->Send({step, 0, shard, 0, true, false, &gradient_});
  }
  std::unique_ptr<CommitWait> Commit(uint64_t step) {
    auto wait = std::make_unique<CommitWait>();
    world_.job().AwaitCommit(worker_->session_ptr(), step, TimePoint::max(), wait->Callback());
    return wait;
  }
  void Play(uint64_t step) {
    Push(step, 0);
    Push(step, 1);
    ASSERT_TRUE(Commit(step)->Wait().ok());
  }

 private:
  JobWorld& world_;
  std::unique_ptr<fakes::FakeWorker> worker_;
  std::vector<float> gradient_;
};

TEST(JobRead, SeesTheCommittedStateInTheMiddleOfAStep) {
  JobWorld world(OneLayer());
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  Step step(world);
  step.Play(0);
  const auto committed = *world.ReadLayer(0, Quantity::kMaster);
  step.Push(1, 0);
  while (world.job().Snapshot().updates < 3) std::this_thread::yield();  // shard 0 is updated
  EXPECT_EQ(*world.ReadLayer(0, Quantity::kMaster), committed);
  step.Push(1, 1);
  ASSERT_TRUE(step.Commit(1)->Wait().ok());
  EXPECT_NE(*world.ReadLayer(0, Quantity::kMaster), committed);
}

// A reader that holds the state over a whole step sees one version of it: the step that would write
// over it waits, and ends when the reader does.
TEST(JobRead, ASlowReaderSeesOneVersion) {
  for (const bool undo : {true, false}) {
    JobWorld world(OneLayer(undo));
    world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
    Step step(world);
    step.Play(0);
    std::vector<float> before = *world.ReadLayer(0, Quantity::kMaster);
    std::vector<float> seen;
    std::unique_ptr<CommitWait> commit;
    const Status status = world.job().Read(
        {0, Quantity::kMaster}, DeadlineAfter(30000), [&](const Job::Piece& piece) {
          EXPECT_EQ(piece.version, 1u);
          if (piece.shard == 0) {
            if (undo) step.Play(1);  // goes to the other generation
            step.Push(undo ? 2 : 1, 0);
            step.Push(undo ? 2 : 1, 1);
            commit = step.Commit(undo ? 2 : 1);
          }
          EXPECT_FALSE(commit->answered());
          seen.insert(seen.end(), piece.values.begin(), piece.values.end());
          return OkStatus();
        });
    ASSERT_TRUE(status.ok()) << ToString(status);
    EXPECT_EQ(seen, before);
    ASSERT_TRUE(commit->Wait().ok());
    EXPECT_NE(*world.ReadLayer(0, Quantity::kMaster), before);
  }
}

TEST(JobRead, WholePiecesThatWereTakenBeforeAreSkipped) {
  JobWorld world(OneLayer());
  world.LoadAll([](uint32_t, uint64_t element) { return float(element); });
  std::vector<float> rest;
  ASSERT_TRUE(world.job()
                  .Read({0, Quantity::kMaster, 64}, DeadlineAfter(1000),
                        [&](const Job::Piece& piece) {
                          rest.assign(piece.values.begin(), piece.values.end());
                          return OkStatus();
                        })
                  .ok());
  ASSERT_EQ(rest.size(), 36u);
  EXPECT_EQ(rest[0], 64.0f);
}

TEST(JobRead, WithoutUndoStateItWaitsForTheStepAtMostUntilItsDeadline) {
  JobWorld world(OneLayer(false));
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  Step step(world);
  step.Push(0, 0);
  while (world.job().Snapshot().updates < 1) std::this_thread::yield();
  const auto sink = [](const Job::Piece&) { return OkStatus(); };
  ExpectError(world.job().Read({0, Quantity::kMaster}, DeadlineAfter(20), sink),
              ErrorCode::kDeadline, {"layer 0 'a' is being updated in step 0"});
  auto read =
      std::async(std::launch::async, [&] { return *world.ReadLayer(0, Quantity::kMaster); });
  step.Push(0, 1);
  ASSERT_TRUE(step.Commit(0)->Wait().ok());
  EXPECT_EQ(read.get(), *world.ReadLayer(0, Quantity::kMaster));
}

}  // namespace
}  // namespace luwu
