// Two nodes of one job and the coordinator between them, without RPC.
#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "server/cluster/lead_reporter.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::AdamHyper;
using fakes::CommitWait;
using fakes::FakeWorker;

constexpr uint64_t kEpoch = 5;

class TwoNodes : public testing::Test {
 protected:
  TwoNodes() : budget_(uint64_t{1} << 30), pool_(2), gradient_(200, 0.5f) {
    JobSpec spec = fakes::SmallSpec(1, {fakes::Layer("a", 200), fakes::Layer("b", 64)});
    coordinator_ = std::make_shared<CommitCoordinator>(
        CoordinatorOptionsFor(spec, kEpoch, fakes::NodeList(2)));
    for (uint32_t node = 0; node < 2; ++node) {
      JobOptions options;
      options.spec = spec;
      options.nodes = fakes::NodeList(2);
      options.self = node;
      options.epoch = kEpoch;
      jobs_.push_back(*Job::Create(std::move(options), {&budget_, &pool_, &table_, &clock_},
                                   MakeLeadReporter(coordinator_, kEpoch, node)));
      EXPECT_TRUE(jobs_[node]->FinishLoad(true).ok());
      Join(node, 0);
    }
  }
  ~TwoNodes() override {
    workers_.clear();
    for (const auto& job : jobs_) job->Shutdown(Error(ErrorCode::kCancelled, "the test ends"));
  }

  void Join(uint32_t node, uint64_t restart_count) {
    workers_.resize(2);
    workers_[node] = std::make_unique<FakeWorker>(
        jobs_[node], &table_, WorkerIdentity{0, restart_count, "host", 1}, true);
    ASSERT_TRUE(workers_[node]->open_status().ok());
  }
  void Begin(uint32_t node, uint64_t step) {
    const Status status = workers_[node]->Begin(step, {AdamHyper()});
    ASSERT_TRUE(status.ok()) << ToString(status);
  }
  void CloseAll(uint32_t node, uint64_t step) {
    for (const LocalShard& shard : jobs_[node]->shard_map().shards()) {
      workers_[node]->Send({step, shard.layer, shard.shard, 0, true, false, &gradient_});
    }
  }
  StatusOr<CommitResult> Commit(uint32_t node, uint64_t step) {
    CommitWait wait;
    jobs_[node]->AwaitCommit(workers_[node]->session_ptr(), step, TimePoint::max(),
                             wait.Callback());
    return wait.Wait();
  }
  std::vector<float> Masters(uint32_t node) {
    std::vector<float> values;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(jobs_[node]
                      ->Read({layer, Quantity::kMaster}, DeadlineAfter(30000),
                             [&](const Job::Piece& piece) {
                               values.insert(values.end(), piece.values.begin(),
                                             piece.values.end());
                               return OkStatus();
                             })
                      .ok());
    }
    return values;
  }

  fakes::FakeClock clock_;
  MemoryBudget budget_;
  SessionTable table_;
  UpdatePool pool_;
  std::shared_ptr<CommitCoordinator> coordinator_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::vector<float> gradient_;
};

TEST_F(TwoNodes, NeitherPublishesBeforeBothHaveFinished) {
  for (uint32_t node = 0; node < 2; ++node) Begin(node, 0);
  CloseAll(0, 0);
  while (jobs_[0]->Snapshot().updates < jobs_[0]->shard_map().shard_count()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(jobs_[0]->current_step(), 0u);
  EXPECT_EQ(workers_[0]->board().published(0), 1u);
  CloseAll(1, 0);
  for (uint32_t node = 0; node < 2; ++node) {
    const auto result = Commit(node, 0);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->outcome, Outcome::kApplied);
    EXPECT_EQ(workers_[node]->board().published(0), 2u);
  }
}

TEST_F(TwoNodes, NonFiniteGradientsOnOneSkipTheStepOnBoth) {
  const auto before = Masters(0);
  for (uint32_t node = 0; node < 2; ++node) Begin(node, 0);
  CloseAll(0, 0);
  gradient_[0] = gradient_[64] = std::numeric_limits<float>::quiet_NaN();
  CloseAll(1, 0);
  for (uint32_t node = 0; node < 2; ++node) {
    const auto result = Commit(node, 0);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->outcome, Outcome::kSkipped);
    EXPECT_NE(result->culprit.find("node 'n1': layer"), std::string::npos) << result->culprit;
    EXPECT_EQ(jobs_[node]->current_step(), 1u);
  }
  EXPECT_EQ(Masters(0), before);
}

// The lead has decided the step, the other node has not heard of it when the worker dies. The
// worker that comes back starts with the older of the two steps and repeats it on both.
TEST_F(TwoNodes, AWorkerThatComesBackBetweenTwoDecisionsRepeatsTheStep) {
  for (uint32_t node = 0; node < 2; ++node) {
    Begin(node, 0);
    CloseAll(node, 0);
  }
  for (uint32_t node = 0; node < 2; ++node) ASSERT_TRUE(Commit(node, 0).ok());
  // Node 1 is now taken to be the one that lags behind: it is replayed at step 1, node 0 at 0.
  const auto masters = Masters(0);
  for (uint32_t node = 0; node < 2; ++node) Join(node, 1);
  for (uint32_t node = 0; node < 2; ++node) {
    Begin(node, 0);
    CloseAll(node, 0);
    const auto result = Commit(node, 0);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->outcome, Outcome::kApplied);
    EXPECT_EQ(workers_[node]->board().fault(), ErrorCode::kOk);
  }
  EXPECT_EQ(Masters(0), masters);
  for (uint32_t node = 0; node < 2; ++node) {
    Begin(node, 1);
    CloseAll(node, 1);
  }
  EXPECT_EQ(Commit(1, 1)->outcome, Outcome::kApplied);
}

TEST_F(TwoNodes, TheCoordinatorsEndIsReportedAgainAndDoesNotEndTheStep) {
  for (uint32_t node = 0; node < 2; ++node) Begin(node, 0);
  CloseAll(0, 0);
  while (jobs_[0]->Snapshot().updates < jobs_[0]->shard_map().shard_count()) {
    std::this_thread::yield();
  }
  coordinator_->Shutdown(Error(ErrorCode::kUnavailable, "the lead stops"));
  CommitWait wait;
  jobs_[0]->AwaitCommit(workers_[0]->session_ptr(), 0, clock_.AfterMs(50), wait.Callback());
  clock_.AdvanceMs(50);
  jobs_[0]->Tick();
  const auto result = wait.Wait();
  EXPECT_EQ(CodeOf(result.status()), ErrorCode::kDeadline);
}

// The same gradients over one node, two and three: the norm is that of all of them, and the masters
// are the same to the last bit.
TEST(ManyNodes, ClippingIsTheSameOverAnyNumberOfNodes) {
  fakes::FakeClock clock;
  MemoryBudget budget(uint64_t{1} << 30);
  SessionTable table;
  UpdatePool pool(2);  // its threads may be the last to hold a job, which knows the table
  const std::vector<LayerSpec> layers = {fakes::Layer("a", 500), fakes::Layer("b", 333)};
  for (const ClipScope scope : {ClipScope::kGlobal, ClipScope::kGroup, ClipScope::kLayer}) {
    std::map<std::pair<uint32_t, uint64_t>, float> masters[3];
    double norms[3] = {};
    for (uint32_t nodes = 1; nodes <= 3; ++nodes) {
      JobSpec spec = fakes::SmallSpec(1, layers);
      spec.update_mode = UpdateMode::kDeferred;
      spec.clip_scope = scope;
      const auto coordinator = std::make_shared<CommitCoordinator>(
          CoordinatorOptionsFor(spec, kEpoch, fakes::NodeList(nodes)));
      std::vector<std::shared_ptr<Job>> jobs;
      std::vector<std::unique_ptr<FakeWorker>> workers;
      HyperParameters hyper = AdamHyper();
      hyper.max_norm = 0.1;
      for (uint32_t node = 0; node < nodes; ++node) {
        JobOptions options;
        options.spec = spec;
        options.nodes = fakes::NodeList(nodes);
        options.self = node;
        options.epoch = kEpoch;
        jobs.push_back(*Job::Create(std::move(options), {&budget, &pool, &table, &clock},
                                    MakeLeadReporter(coordinator, kEpoch, node)));
        ASSERT_TRUE(jobs[node]->FinishLoad(true).ok());
        workers.push_back(std::make_unique<FakeWorker>(jobs[node], &table,
                                                       WorkerIdentity{0, 0, "host", 1}, true));
        ASSERT_TRUE(workers[node]->Begin(0, {hyper}).ok());
        for (const LocalShard& shard : jobs[node]->shard_map().shards()) {
          std::vector<float> gradient(layers[shard.layer].elements);
          for (uint64_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = std::ldexp(1.0f + float(i % 97) / 97, int(i % 41) - 30);
          }
          workers[node]->Send({0, shard.layer, shard.shard, 0, true, false, &gradient});
        }
      }
      for (uint32_t node = 0; node < nodes; ++node) {
        CommitWait wait;
        jobs[node]->AwaitCommit(workers[node]->session_ptr(), 0, TimePoint::max(), wait.Callback());
        const auto result = wait.Wait();
        ASSERT_TRUE(result.ok()) << ToString(result.status());
        norms[nodes - 1] = result->grad_norm;
        for (uint32_t layer = 0; layer < 2; ++layer) {
          ASSERT_TRUE(
              jobs[node]
                  ->Read({layer, Quantity::kMaster}, DeadlineAfter(30000),
                         [&](const Job::Piece& piece) {
                           for (uint64_t i = 0; i < piece.values.size(); ++i) {
                             masters[nodes - 1][{layer, piece.shard * 64 + i}] = piece.values[i];
                           }
                           return OkStatus();
                         })
                  .ok());
        }
      }
      workers.clear();
      for (const auto& job : jobs) job->Shutdown(Error(ErrorCode::kCancelled, "the test ends"));
    }
    EXPECT_EQ(masters[0].size(), 833u);
    EXPECT_EQ(norms[0], norms[1]);
    EXPECT_EQ(norms[0], norms[2]);
    EXPECT_EQ(masters[0], masters[1]);
    EXPECT_EQ(masters[0], masters[2]);
  }
}

}  // namespace
}  // namespace luwu
