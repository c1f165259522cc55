// Non-finite gradients: who is named, and that nothing of the committed state is touched.
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::AdamHyper;
using fakes::CommitWait;
using fakes::FakeWorker;
using fakes::JobWorld;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

JobSpec TwoLayers(NonFinitePolicy policy, bool undo) {
  LayerSpec layer;
  layer.name = "mixed";
  layer.elements = 200;
  layer.tensors = {fakes::Tensor("mixed.frozen", 50, 0, false),
                   fakes::Tensor("mixed.weight", 140, 60)};
  JobSpec spec = fakes::SmallSpec(2, {fakes::Layer("plain", 100), layer});
  spec.on_non_finite = policy;
  spec.keep_undo_state = undo;
  spec.served_dtype = DType::kBFloat16;
  return spec;
}

class Play {
 public:
  Play(NonFinitePolicy policy, bool undo) : world_(TwoLayers(policy, undo)) {
    world_.LoadAll([](uint32_t layer, uint64_t element) {
      return layer == 1 && element >= 50 && element < 60 ? 0.0f : 0.01f * float(element + layer);
    });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers_.push_back(world_.Join(rank));
      plain_.push_back(std::vector<float>(100, 0.5f + float(rank)));
      mixed_.push_back(std::vector<float>(200, 0.25f));
    }
  }

  std::vector<float>& plain(uint32_t rank) { return plain_[rank]; }
  std::vector<float>& mixed(uint32_t rank) { return mixed_[rank]; }
  JobWorld& world() { return world_; }
  FakeWorker& worker(uint32_t rank) { return *workers_[rank]; }

  StatusOr<CommitResult> Step(uint64_t step) {
    for (auto& worker : workers_) EXPECT_TRUE(worker->Begin(step, {AdamHyper()}).ok());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint32_t shard = 0; shard < 2; ++shard) {
        workers_[rank]->Send({step, 0, shard, 0, true, false, &plain_[rank]});
      }
      for (uint32_t shard = 0; shard < 4; ++shard) {
        workers_[rank]->Send({step, 1, shard, 0, true, false, &mixed_[rank]});
      }
    }
    CommitWait wait;
    world_.job().AwaitCommit(workers_[0]->session_ptr(), step, TimePoint::max(), wait.Callback());
    return wait.Wait();
  }
  std::vector<std::vector<float>> State() {
    std::vector<std::vector<float>> state;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint8_t quantity = 1; quantity <= 3; ++quantity) {
        const auto values = world_.ReadLayer(layer, static_cast<Quantity>(quantity));
        EXPECT_TRUE(values.ok()) << ToString(values.status());
        state.push_back(*values);
      }
    }
    return state;
  }
  std::vector<std::byte> Served(uint64_t version) {
    std::vector<std::byte> bytes;
    const ShardMap& map = world_.job().shard_map();
    EXPECT_TRUE(workers_[0]->board().WaitFor([&] {
      for (uint32_t i = 0; i < map.shard_count(); ++i) {
        if (workers_[0]->board().published(i) <= version) return false;
      }
      return true;
    }));
    for (uint32_t i = 0; i < map.shard_count(); ++i) {
      const std::vector<std::byte> payload = workers_[0]->ReadCopy(i, version).payload;
      bytes.insert(bytes.end(), payload.begin(), payload.end());
    }
    return bytes;
  }

 private:
  JobWorld world_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::vector<std::vector<float>> plain_;
  std::vector<std::vector<float>> mixed_;
};

void ExpectWords(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
  }
}

TEST(JobNonFinite, ASkippedStepTouchesNothingAndTheNextOneIsAsIfItHadNotBeen) {
  Play bad(NonFinitePolicy::kSkip, true);
  Play good(NonFinitePolicy::kSkip, true);
  ASSERT_EQ(bad.Step(0)->outcome, Outcome::kApplied);
  ASSERT_EQ(good.Step(0)->outcome, Outcome::kApplied);
  const auto state = bad.State();
  const auto served = bad.Served(1);

  bad.mixed(1)[130] = kNan;
  const StatusOr<CommitResult> result = bad.Step(1);
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  EXPECT_EQ(result->outcome, Outcome::kSkipped);
  ExpectWords(result->culprit, {"node 'n0'", "layer 1 'mixed'", "tensor 'mixed.weight'",
                                "element 70:", "rank 1", "micro-step 0", "not finite"});
  EXPECT_EQ(bad.State(), state);
  EXPECT_EQ(bad.Served(2), served);
  EXPECT_EQ(bad.worker(0).board().published(0), 3u);
  EXPECT_EQ(bad.world().job().Snapshot().skipped_steps, 1u);

  // Bias correction counts updates, not steps.
  bad.mixed(1)[130] = 0.25f;
  ASSERT_EQ(bad.Step(2)->outcome, Outcome::kApplied);
  ASSERT_EQ(good.Step(1)->outcome, Outcome::kApplied);
  EXPECT_EQ(bad.State(), good.State());
}

TEST(JobNonFinite, AFailedStepPublishesNothingAndTheJobTakesNoFurtherStep) {
  Play play(NonFinitePolicy::kFail, true);
  ASSERT_EQ(play.Step(0)->outcome, Outcome::kApplied);
  const auto state = play.State();
  play.plain(0)[3] = -kInfinity;
  const StatusOr<CommitResult> result = play.Step(1);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, Outcome::kFailed);
  ExpectWords(result->culprit, {"layer 0 'plain'", "element 3:", "rank 0"});
  EXPECT_EQ(play.State(), state);
  EXPECT_EQ(play.worker(1).board().published(0), 2u);
  const Status again = play.worker(0).Begin(2, {AdamHyper()});
  EXPECT_EQ(CodeOf(again), ErrorCode::kJobFailed);
  ExpectWords(MessageOf(again), {"layer 0 'plain'", "step 1"});
  EXPECT_EQ(play.world().job().Snapshot().state, JobState::kFailed);
}

TEST(JobNonFinite, WithoutUndoStateTheJobFailsAndSaysWhy) {
  Play play(NonFinitePolicy::kFail, false);
  ASSERT_EQ(play.Step(0)->outcome, Outcome::kApplied);
  play.plain(1)[99] = kNan;
  const StatusOr<CommitResult> result = play.Step(1);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, Outcome::kFailed);
  ExpectWords(result->culprit, {"layer 0 'plain'", "element 99:", "rank 1"});
  EXPECT_EQ(CodeOf(play.worker(1).Begin(1, {AdamHyper()})), ErrorCode::kJobFailed);
}

// In place, what was updated before the failure stays updated, and is read as such: also when half
// of a master is in a served copy that was never published.
TEST(JobNonFinite, WithoutUndoStateALayerThatWasUpdatedIsReadUpdated) {
  std::vector<float> masters[2];
  for (const MasterFormat format : {MasterFormat::kFloat32, MasterFormat::kSplit}) {
    JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 64), fakes::Layer("b", 64)});
    spec.served_dtype = DType::kBFloat16;
    spec.optimizer.master_format = format;
    spec.keep_undo_state = false;
    spec.on_non_finite = NonFinitePolicy::kFail;
    JobWorld world(spec);
    world.LoadAll([](uint32_t, uint64_t element) { return 1 + float(element) / 977; });
    const auto worker = world.Join(0);
    ASSERT_TRUE(worker->Begin(0, {AdamHyper()}).ok());
    const std::vector<float> good(64, 1.0f);
    const std::vector<float> bad(64, kNan);
    worker->Send({0, 0, 0, 0, true, false, &good});
    while (world.job().Snapshot().updates < 1) std::this_thread::yield();
    worker->Send({0, 1, 0, 0, true, false, &bad});
    CommitWait wait;
    world.job().AwaitCommit(worker->session_ptr(), 0, TimePoint::max(), wait.Callback());
    ASSERT_EQ(wait.Wait()->outcome, Outcome::kFailed);
    masters[format == MasterFormat::kSplit] = *world.ReadLayer(0, Quantity::kMaster);
  }
  EXPECT_NE(masters[0][1], 1 + 1.0f / 977);
  EXPECT_EQ(masters[0], masters[1]);
}

TEST(JobNonFinite, AnOverflowOfTheSumIsCalledThat) {
  Play play(NonFinitePolicy::kSkip, true);
  play.plain(0)[0] = play.plain(1)[0] = std::numeric_limits<float>::max();
  const StatusOr<CommitResult> result = play.Step(0);
  ASSERT_EQ(result->outcome, Outcome::kSkipped);
  ExpectWords(result->culprit, {"element 0:", "their sum overflows"});
}

TEST(JobNonFinite, FrozenElementsAndGapsDoNotCount) {
  Play play(NonFinitePolicy::kSkip, true);
  play.mixed(0)[49] = kNan;  // frozen tensor
  play.mixed(1)[55] = kNan;  // gap
  ASSERT_EQ(play.Step(0)->outcome, Outcome::kApplied);
  const auto state = play.State();
  for (uint64_t i = 50; i < 60; ++i) EXPECT_EQ(state[3][i], 0.0f);
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(state[3][i], 0.01f * float(i + 1));
}

// The first worker runs ahead until its gradients are folded: it is named all the same.
TEST(JobNonFinite, ARankWhoseGradientWasFoldedIsNamed) {
  JobSpec spec = fakes::SmallSpec(2, {fakes::Layer("a", 64)});
  spec.slots_per_worker = 2;
  JobWorld world(spec);
  world.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  const auto first = world.Join(0);
  const auto second = world.Join(1);
  ASSERT_TRUE(first->Begin(0, {AdamHyper()}).ok());
  ASSERT_TRUE(second->Begin(0, {AdamHyper()}).ok());
  std::vector<float> good(64, 1.0f);
  std::vector<float> bad = good;
  bad[33] = kInfinity;
  // Micro-steps 0 and 1 of rank 1 are early, those of rank 0 in order: with two slots each, all but
  // the last have to leave their slots.
  for (uint32_t micro_step = 0; micro_step < 4; ++micro_step) {
    second->Send({0, 0, 0, micro_step, micro_step == 3, false, &good});
  }
  for (uint32_t micro_step = 0; micro_step < 4; ++micro_step) {
    first->Send({0, 0, 0, micro_step, micro_step == 3, false, micro_step == 1 ? &bad : &good});
  }
  CommitWait wait;
  world.job().AwaitCommit(first->session_ptr(), 0, TimePoint::max(), wait.Callback());
  const StatusOr<CommitResult> result = wait.Wait();
  ASSERT_EQ(result->outcome, Outcome::kSkipped);
  ExpectWords(result->culprit, {"tensor 'a.weight'", "element 33:", "rank 0 (micro-step 1)"});
}

}  // namespace
}  // namespace luwu
