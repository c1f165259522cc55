// What happens between the decision about a step and the last shard that is settled.
#include <cmath>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"
#include "tests/unit/step/job_model.h"

namespace luwu {
namespace {

using fakes::AdamHyper;
using fakes::CommitWait;
using fakes::FakeWorker;
using fakes::JobWorld;

constexpr uint64_t kElements = 64;

JobSpec Spec(UpdateMode mode, ClipScope scope = ClipScope::kNone) {
  JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", kElements), fakes::Layer("b", kElements)});
  spec.update_mode = mode;
  spec.clip_scope = scope;
  spec.keep_undo_state = mode != UpdateMode::kDeferred;
  return spec;
}

class Play {
 public:
  explicit Play(const JobSpec& spec) : world(spec), model(world.job().spec()) {
    world.LoadAll([this](uint32_t layer, uint64_t element) {
      return model.array(layer, 0)[element] = 1.0f + float(layer) + float(element) / 64;
    });
    worker = world.Join(0);
  }

  void Push(uint64_t step, uint32_t layer, const std::vector<float>& values) {
    worker->Send({step, layer, 0, 0, true, false, &values});
  }
  void Begin(uint64_t step, const HyperParameters& hyper) {
    const Status status = worker->Begin(step, {hyper});
    ASSERT_TRUE(status.ok()) << ToString(status);
  }
  CommitResult Commit(uint64_t step) {
    CommitWait wait;
    world.job().AwaitCommit(worker->session_ptr(), step, TimePoint::max(), wait.Callback());
    const StatusOr<CommitResult> result = wait.Wait();
    EXPECT_TRUE(result.ok()) << ToString(result.status());
    return result.value_or(CommitResult());
  }
  CommitResult Step(uint64_t step, const HyperParameters& hyper, const std::vector<float>& a,
                    const std::vector<float>& b) {
    Begin(step, hyper);
    Push(step, 0, a);
    Push(step, 1, b);
    return Commit(step);
  }
  void AwaitPublished(uint32_t shard, uint64_t word) {
    ASSERT_TRUE(worker->board().WaitFor([&] { return worker->board().published(shard) == word; }));
  }
  void ModelStep(const HyperParameters& hyper, const std::vector<float>& a,
                 const std::vector<float>& b, float loss_scale = 1, double factor = 1) {
    model.Push(0, 0, 0, 0, &a);
    model.Push(1, 0, 0, 0, &b);
    model.EndStep({hyper}, loss_scale, [factor](uint32_t, uint32_t) { return factor; });
  }
  void ExpectModel() {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint32_t array = 0; array < 3; ++array) {
        const auto values = world.ReadLayer(layer, static_cast<Quantity>(array + 1));
        ASSERT_TRUE(values.ok()) << ToString(values.status());
        EXPECT_EQ(*values, model.array(layer, array)) << "layer " << layer << " array " << array;
      }
    }
  }

  JobWorld world;
  JobModel model;
  std::unique_ptr<FakeWorker> worker;
};

std::vector<float> Gradient(float value) { return std::vector<float>(kElements, value); }

// Holds a layer's state, as somebody does who saves it, until it is let go.
class Reader {
 public:
  Reader(Job& job, uint32_t layer)
      : read_(std::async(std::launch::async, [this, &job, layer] {
          return job.Read({layer, Quantity::kMaster}, TimePoint::max(), [this](const Job::Piece&) {
            entered_.set_value();
            go_.get_future().wait();
            return OkStatus();
          });
        })) {
    entered_.get_future().wait();
  }
  Status Finish() {
    go_.set_value();
    return read_.get();
  }

 private:
  std::promise<void> entered_;
  std::promise<void> go_;
  std::future<Status> read_;
};

TEST(JobDeferred, TheCommitIsAnsweredAtTheDecisionAndEachShardIsPublishedByItself) {
  Play play(Spec(UpdateMode::kDeferred));
  const auto a = Gradient(0.5f);
  const auto b = Gradient(0.25f);
  Reader reader(play.world.job(), 0);
  EXPECT_EQ(play.Step(0, AdamHyper(), a, b).outcome, Outcome::kApplied);
  play.AwaitPublished(1, 2);
  EXPECT_EQ(play.worker->board().published(0), 1u) << "a reader holds its state";
  EXPECT_EQ(play.worker->board().current_step(), 1u);
  ASSERT_TRUE(reader.Finish().ok());
  play.AwaitPublished(0, 2);
  play.ModelStep(AdamHyper(), a, b);
  play.ExpectModel();
}

// The gradients of step 1 come before layer 0 has got its update of step 0, which keeps the
// hyper-parameters of step 0.
TEST(JobDeferred, TheNextStepsGradientsQueueBehindAnUpdateThatIsPending) {
  Play play(Spec(UpdateMode::kDeferred));
  const auto a = Gradient(0.5f);
  const auto b = Gradient(0.25f);
  Reader reader(play.world.job(), 0);
  EXPECT_EQ(play.Step(0, AdamHyper(0.01), a, b).outcome, Outcome::kApplied);
  play.AwaitPublished(1, 2);  // nothing is pending for layer 1
  play.Begin(1, AdamHyper(0.5));
  play.Push(1, 0, b);
  play.Push(1, 1, a);
  EXPECT_EQ(play.world.job().Snapshot().parked_slots, 1u);
  CommitWait wait;
  play.world.job().AwaitCommit(play.worker->session_ptr(), 1, TimePoint::max(), wait.Callback());
  EXPECT_FALSE(wait.answered());
  ASSERT_TRUE(reader.Finish().ok());
  ASSERT_TRUE(wait.Wait().ok());
  play.ModelStep(AdamHyper(0.01), a, b);
  play.ModelStep(AdamHyper(0.5), b, a);
  play.ExpectModel();
}

TEST(JobDeferred, AWorkerThatComesBackWhileAnUpdateIsPendingSendsTheNextStepAgain) {
  Play play(Spec(UpdateMode::kDeferred));
  const auto a = Gradient(0.5f);
  const auto b = Gradient(0.25f);
  Reader reader(play.world.job(), 0);
  EXPECT_EQ(play.Step(0, AdamHyper(), a, b).outcome, Outcome::kApplied);
  play.Begin(1, AdamHyper());
  play.Push(1, 0, a);
  const auto former = std::move(play.worker);
  play.worker = play.world.Join(0, 1);
  // Step 0 again, as a worker does that finds another node one step behind; then step 1.
  EXPECT_EQ(play.Step(0, AdamHyper(), a, b).outcome, Outcome::kApplied);
  EXPECT_EQ(play.worker->board().published(0), 1u);
  ASSERT_TRUE(reader.Finish().ok());
  EXPECT_EQ(play.Step(1, AdamHyper(), b, b).outcome, Outcome::kApplied);
  EXPECT_EQ(play.worker->board().fault(), ErrorCode::kOk) << play.worker->board().fault_text();
  play.ModelStep(AdamHyper(), a, b);
  play.ModelStep(AdamHyper(), b, b);
  play.ExpectModel();
}

TEST(JobDeferred, AReaderSeesAVersionAsAWhole) {
  Play play(Spec(UpdateMode::kDeferred));
  const auto a = Gradient(0.5f);
  const auto before = *play.world.ReadLayer(0, Quantity::kMaster);
  play.Begin(0, AdamHyper());
  play.Push(0, 0, a);
  EXPECT_EQ(*play.world.ReadLayer(0, Quantity::kMaster), before) << "held, not applied";
  play.Push(0, 1, a);
  play.Commit(0);
  const auto after = *play.world.ReadLayer(0, Quantity::kMaster);  // waits for the update
  play.ModelStep(AdamHyper(), a, a);
  EXPECT_EQ(after, play.model.array(0, 0));
}

TEST(JobDeferred, TheNormAndTheFactorOfAClippedStep) {
  for (const UpdateMode mode : {UpdateMode::kDeferred, UpdateMode::kSpeculative}) {
    Play play(Spec(mode, ClipScope::kGlobal));
    const auto a = Gradient(0.375f);  // 64 * 0.375^2 = 9
    const auto b = Gradient(0.5f);    // 64 * 0.5^2 = 16
    HyperParameters hyper = AdamHyper();
    hyper.max_norm = 1;
    const CommitResult result = play.Step(0, hyper, a, b);
    EXPECT_EQ(result.grad_norm, 5.0);
    EXPECT_EQ(result.clip_factor, 1 / (5.0 + 1e-6));
    EXPECT_EQ(play.world.job().Snapshot().clipped_steps, 1u);
    play.ModelStep(hyper, a, b, 1, result.clip_factor);
    hyper.max_norm = 6;
    EXPECT_EQ(play.Step(1, hyper, a, b).clip_factor, 1.0);
    play.ModelStep(hyper, a, b);
    play.ExpectModel();
    const JobSnapshot snapshot = play.world.job().Snapshot();
    EXPECT_EQ(snapshot.clipped_steps, 1u);
    EXPECT_EQ(snapshot.grad_norm, 5.0);
    EXPECT_EQ(snapshot.update_mode, mode);
    EXPECT_EQ(snapshot.updates, mode == UpdateMode::kDeferred ? 4u : 6u);
  }
}

TEST(JobDeferred, ImmediateModeTellsTheNormToo) {
  Play play(Spec(UpdateMode::kImmediate));
  EXPECT_EQ(play.Step(0, AdamHyper(), Gradient(0.375f), Gradient(0.5f)).grad_norm, 5.0);
}

TEST(JobDeferred, TheLossScaleBacksOffAndGrowsAndDividesGradients) {
  for (const UpdateMode mode : {UpdateMode::kDeferred, UpdateMode::kSpeculative}) {
    JobSpec spec = Spec(mode);
    spec.loss_scaling = {1024, 2, 0.5, 2};
    Play play(spec);
    const auto good = Gradient(256.0f);
    auto bad = good;
    bad[7] = std::numeric_limits<float>::infinity();
    const CommitResult skipped = play.Step(0, AdamHyper(), good, bad);
    EXPECT_EQ(play.worker->loss_scale(), 1024);
    EXPECT_EQ(skipped.outcome, Outcome::kSkipped);
    EXPECT_TRUE(std::isnan(skipped.grad_norm));
    EXPECT_EQ(skipped.next_loss_scale, 512);
    play.AwaitPublished(0, 2);
    play.AwaitPublished(1, 2);
    for (uint64_t step = 1; step <= 2; ++step) {
      const CommitResult applied = play.Step(step, AdamHyper(), good, good);
      EXPECT_EQ(play.worker->loss_scale(), 512);
      EXPECT_EQ(applied.grad_norm, 0.5 * std::sqrt(128.0));
      EXPECT_EQ(applied.next_loss_scale, step == 1 ? 512 : 1024);
      play.ModelStep(AdamHyper(), good, good, 512);
    }
    // Somebody who comes back and repeats step 2 gets the scale of step 2.
    const auto former = std::move(play.worker);
    play.worker = play.world.Join(0, 1);
    play.Begin(2, AdamHyper());
    EXPECT_EQ(play.worker->loss_scale(), 512);
    play.Begin(3, AdamHyper());
    EXPECT_EQ(play.worker->loss_scale(), 1024);
    play.ExpectModel();
    EXPECT_EQ(play.world.job().Snapshot().loss_scale, 1024);
  }
}

// Wherever the gradient that is not finite lies: nothing changes, with one generation of state.
TEST(JobDeferred, ASkipAtEachShardLeavesMastersAndMomentsAsTheyWere) {
  for (const UpdateMode mode : {UpdateMode::kDeferred, UpdateMode::kSpeculative}) {
    Play play(Spec(mode));
    const auto good = Gradient(0.5f);
    auto bad = good;
    bad[63] = std::nanf("");
    play.Step(0, AdamHyper(), good, good);
    play.ModelStep(AdamHyper(), good, good);
    EXPECT_EQ(play.Step(1, AdamHyper(), bad, good).outcome, Outcome::kSkipped);
    EXPECT_EQ(play.Step(2, AdamHyper(), good, bad).outcome, Outcome::kSkipped);
    play.Step(3, AdamHyper(), good, good);
    play.ModelStep(AdamHyper(), good, good);
    play.ExpectModel();
  }
}

TEST(JobDeferred, AFailedStepPublishesNothing) {
  JobSpec spec = Spec(UpdateMode::kDeferred);
  spec.on_non_finite = NonFinitePolicy::kFail;
  Play play(spec);
  auto bad = Gradient(0.5f);
  bad[0] = std::nanf("");
  EXPECT_EQ(play.Step(0, AdamHyper(), Gradient(1), bad).outcome, Outcome::kFailed);
  EXPECT_EQ(play.worker->board().published(0), 1u);
  EXPECT_EQ(CodeOf(play.worker->Begin(1, {AdamHyper()})), ErrorCode::kJobFailed);
  play.ExpectModel();
}

TEST(JobDeferred, ADecisionWithTheWrongNumberOfFactorsIsNotCarriedOut) {
  Play play(Spec(UpdateMode::kDeferred, ClipScope::kLayer));
  play.world.decider().ChangeDecisions([](uint64_t, StepDecision* decision) {
    decision->factors = {1, 1, 1};
  });
  play.Begin(0, AdamHyper());
  play.Push(0, 0, Gradient(1));
  const auto values = Gradient(1);
  play.Push(0, 1, values);
  CommitWait wait;
  while (play.world.decider().count() == 0) std::this_thread::yield();
  play.world.job().AwaitCommit(play.worker->session_ptr(), 0, play.world.clock().Now(),
                               wait.Callback());
  EXPECT_EQ(CodeOf(wait.Wait().status()), ErrorCode::kDeadline);
  EXPECT_EQ(play.world.job().current_step(), 0u);
}

// Running sums lie in the held buffers: accumulation needs no overflow memory, in order.
TEST(JobDeferred, InOrderAccumulationNeedsNoOverflowMemory) {
  JobSpec spec = Spec(UpdateMode::kDeferred);
  spec.overflow_bytes = 0;
  spec.slots_per_worker = 2;
  Play play(spec);
  const auto values = Gradient(0.5f);
  play.Begin(0, AdamHyper());
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t micro_step = 0; micro_step < 9; ++micro_step) {
      play.worker->Send({0, layer, 0, micro_step, micro_step == 8, false, &values});
      play.model.Push(layer, 0, micro_step, 0, &values);
    }
  }
  EXPECT_EQ(play.Commit(0).grad_norm, std::sqrt(128 * 4.5 * 4.5));
  play.model.EndStep({AdamHyper()});
  play.ExpectModel();
}

}  // namespace
}  // namespace luwu
