// Ends of steps: outcomes, lost and silent workers, deadlines, late and repeated calls.
#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::AdamHyper;
using fakes::CommitWait;
using fakes::FakeWorker;
using fakes::JobWorld;
using fakes::Push;

class JobCommit : public testing::Test {
 protected:
  JobCommit()
      : world_(fakes::SmallSpec(2, {fakes::Layer("a", 64), fakes::Layer("b", 130),
                                    fakes::Layer("c", 64), fakes::Layer("d", 64)})),
        gradient_(130, 0.5f) {
    world_.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
    first_ = world_.Join(0);
  }

  void Begin(FakeWorker& worker, uint64_t step) {
    const Status status = worker.Begin(step, {AdamHyper()});
    ASSERT_TRUE(status.ok()) << ToString(status);
  }
  void CloseAll(FakeWorker& worker, uint64_t step) {
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const uint32_t shards = layer == 1 ? 3 : 1;
      for (uint32_t shard = 0; shard < shards; ++shard) {
        worker.Send({step, layer, shard, 0, true, false, &gradient_});
      }
    }
  }
  std::unique_ptr<CommitWait> Commit(FakeWorker& worker, uint64_t step) {
    auto wait = std::make_unique<CommitWait>();
    world_.job().AwaitCommit(worker.session_ptr(), step, world_.clock().AfterMs(1000),
                             wait->Callback());
    return wait;
  }
  void ExpectError(CommitWait& wait, ErrorCode code, const std::vector<std::string>& words) {
    ASSERT_TRUE(wait.answered());
    const StatusOr<CommitResult> result = wait.Wait();
    EXPECT_EQ(CodeOf(result.status()), code) << ToString(result.status());
    for (const std::string& word : words) {
      EXPECT_NE(MessageOf(result.status()).find(word), std::string::npos)
          << word << " in: " << MessageOf(result.status());
    }
  }
  // What a commit of step 0 answers that may not wait at all.
  void ExpectDeadline(const std::vector<std::string>& words) {
    CommitWait wait;
    world_.job().AwaitCommit(first_->session_ptr(), 0, world_.clock().Now(), wait.Callback());
    ExpectError(wait, ErrorCode::kDeadline, words);
  }
  void PlayStep(FakeWorker& second, uint64_t step) {
    Begin(*first_, step);
    Begin(second, step);
    CloseAll(*first_, step);
    CloseAll(second, step);
    const StatusOr<CommitResult> result = Commit(*first_, step)->Wait();
    ASSERT_TRUE(result.ok()) << ToString(result.status());
    ASSERT_EQ(result->outcome, Outcome::kApplied);
  }

  JobWorld world_;
  std::vector<float> gradient_;
  std::unique_ptr<FakeWorker> first_;
};

TEST_F(JobCommit, AWorkerThatNeverJoinedIsSilentAndNamedAtTheDeadline) {
  Begin(*first_, 0);
  CloseAll(*first_, 0);
  const auto wait = Commit(*first_, 0);
  world_.job().Tick();
  EXPECT_FALSE(wait->answered());
  world_.clock().AdvanceMs(1000);
  world_.job().Tick();
  ExpectError(*wait, ErrorCode::kDeadline, {"step 0 of job 'job'", "rank 1 has never joined"});
}

TEST_F(JobCommit, TheDeadlineNamesRanksAndOpenLayers) {
  const auto second = world_.Join(1);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*first_, 0);
  second->Send({0, 0, 0, 0, true, false, &gradient_});
  const auto wait = Commit(*first_, 0);
  world_.clock().AdvanceMs(1000);
  world_.job().Tick();
  ExpectError(*wait, ErrorCode::kDeadline,
              {"rank 1 (host host1, pid 101) has 5 shards of 3 layers open ('b', 'c', 'd')"});
}

TEST_F(JobCommit, AWorkerWhoseLeaseExpiredIsLost) {
  const auto second = world_.Join(1);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*first_, 0);
  const auto wait = Commit(*first_, 0);
  world_.Pass(14500);
  ASSERT_TRUE(first_->session().Renew().ok());
  second->Unlink(Error(ErrorCode::kUnavailable, "gone"));
  // A deadline far away, so that only the loss can answer.
  CommitWait patient;
  world_.job().AwaitCommit(first_->session_ptr(), 0, TimePoint::max(), patient.Callback());
  world_.job().Tick();
  EXPECT_FALSE(patient.answered()) << "merely unlinked is not lost";
  world_.clock().AdvanceMs(700);
  world_.job().Tick();
  ExpectError(patient, ErrorCode::kWorkerLost,
              {"rank 1 (host host1, pid 101) was lost 0.0 s ago", "lease", "6 of its shards open"});
}

TEST_F(JobCommit, AWorkerThatClosedItsSessionIsLostAndTheStepGoesOnWhenItIsBack) {
  auto second = world_.Join(1);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*first_, 0);
  const auto wait = Commit(*first_, 0);
  second.reset();
  ExpectError(*wait, ErrorCode::kWorkerLost, {"rank 1", "has closed its session"});
  ExpectError(*Commit(*first_, 0), ErrorCode::kWorkerLost, {"rank 1"});
  second = world_.Join(1);
  Begin(*second, 0);
  const auto again = Commit(*first_, 0);
  EXPECT_FALSE(again->answered());
  CloseAll(*second, 0);
  ASSERT_TRUE(again->Wait().ok());
  EXPECT_EQ(again->Wait()->outcome, Outcome::kApplied);
}

TEST_F(JobCommit, AWorkerAtFaultIsLostToTheOthersAndGetsItsOwnFault) {
  const auto second = world_.Join(1);
  Begin(*first_, 0);
  Begin(*second, 0);
  const auto wait = Commit(*first_, 0);
  const auto own = Commit(*second, 0);
  second->Ring(1000);
  ExpectError(*wait, ErrorCode::kWorkerLost, {"rank 1", "slot 1000"});
  ExpectError(*own, ErrorCode::kInvalidArgument, {"slot 1000"});
}

TEST_F(JobCommit, AWorkerThatHasClosedEverythingMayDie) {
  auto second = world_.Join(1);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*second, 0);  // with 4 slots for 6 shards, some of it in overflow blocks
  second.reset();
  const auto wait = Commit(*first_, 0);
  EXPECT_FALSE(wait->answered());
  CloseAll(*first_, 0);
  ASSERT_TRUE(wait->Wait().ok()) << ToString(wait->Wait().status());
}

TEST_F(JobCommit, AnOwnSessionThatWasReplacedGetsFenced) {
  Begin(*first_, 0);
  const auto wait = Commit(*first_, 0);
  const auto latter = world_.Join(0, 1);
  ExpectError(*wait, ErrorCode::kFenced, {"was replaced by pid 100"});
}

TEST_F(JobCommit, CommitOfADecidedStepIsRemembered) {
  const auto second = world_.Join(1);
  PlayStep(*second, 0);
  const auto late = Commit(*second, 0);
  ASSERT_TRUE(late->answered());
  EXPECT_EQ(late->Wait()->outcome, Outcome::kApplied);
  PlayStep(*second, 1);
  ExpectError(*Commit(*second, 0), ErrorCode::kStepMismatch, {"step 0", "is at step 2"});
  ExpectError(*Commit(*second, 3), ErrorCode::kStepMismatch, {"step 3", "is at step 2"});
}

// Another node may be one step behind: the worker that comes back repeats that step everywhere.
TEST_F(JobCommit, TheStepJustDecidedCanBeRepeatedWithoutEffect) {
  auto second = world_.Join(1);
  PlayStep(*second, 0);
  const auto masters = world_.ReadLayer(1, Quantity::kMaster);
  second = world_.Join(1, 1);
  Begin(*second, 0);
  CloseAll(*second, 0);
  ASSERT_TRUE(Commit(*second, 0)->Wait().ok());
  EXPECT_EQ(second->board().fault(), ErrorCode::kOk) << second->board().fault_text();
  EXPECT_EQ(*world_.ReadLayer(1, Quantity::kMaster), *masters);
  EXPECT_EQ(world_.job().Snapshot().duplicates, 6u);
  PlayStep(*second, 1);
}

TEST_F(JobCommit, BeginChecksStepAndHyperParameters) {
  const auto second = world_.Join(1);
  EXPECT_EQ(CodeOf(first_->Begin(1, {AdamHyper()})), ErrorCode::kStepMismatch);
  EXPECT_EQ(CodeOf(first_->Begin(0, {})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(first_->Begin(0, {AdamHyper(-1)})), ErrorCode::kInvalidArgument);
  Begin(*first_, 0);
  Begin(*first_, 0);
  const Status status = second->Begin(0, {AdamHyper(0.5)});
  EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find("lr 0.5 against 0.01"), std::string::npos);
  PlayStep(*second, 0);
  PlayStep(*second, 1);
  EXPECT_EQ(CodeOf(first_->Begin(0, {AdamHyper()})), ErrorCode::kStepMismatch);
}

TEST_F(JobCommit, AnUndeliveredReportIsRepeatedWithAPause) {
  const auto second = world_.Join(1);
  world_.decider().Hold(true);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*first_, 0);
  CloseAll(*second, 0);
  auto report = world_.decider().Take();
  ASSERT_TRUE(report);
  report->done(Error(ErrorCode::kUnavailable, "the lead is away"));
  ExpectDeadline({"the lead node cannot be asked", "the lead is away"});
  EXPECT_EQ(world_.decider().count(), 1u) << "not before the pause is over";
  world_.clock().AdvanceMs(100);
  world_.decider().Hold(false);
  world_.job().Tick();
  EXPECT_EQ(world_.decider().count(), 2u);
  EXPECT_EQ(world_.job().current_step(), 1u);
}

TEST_F(JobCommit, ALeadThatIsLostIsNamedAtOnceAndTheReportGoesOn) {
  const auto second = world_.Join(1);
  world_.decider().Hold(true);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*first_, 0);
  CloseAll(*second, 0);
  auto report = world_.decider().Take();
  ASSERT_TRUE(report);
  const auto wait = Commit(*first_, 0);
  report->done(Error(ErrorCode::kNodeLost, "node 'n7' is away"));
  ExpectError(*wait, ErrorCode::kNodeLost, {"node 'n7'"});
  ExpectError(*Commit(*first_, 0), ErrorCode::kNodeLost, {"node 'n7'"});
  world_.clock().AdvanceMs(100);
  world_.job().Tick();
  report = world_.decider().Take();
  ASSERT_TRUE(report);
  const auto again = Commit(*first_, 0);
  EXPECT_FALSE(again->answered()) << "the lead is being asked again";
  report->done(StepDecision{Outcome::kApplied, ""});
  EXPECT_TRUE(again->Wait().ok());
}

TEST_F(JobCommit, TheDeadlineSaysThatOtherNodesAreWaitedFor) {
  const auto second = world_.Join(1);
  world_.decider().Hold(true);
  Begin(*first_, 0);
  Begin(*second, 0);
  CloseAll(*first_, 0);
  CloseAll(*second, 0);
  const auto report = world_.decider().Take();
  const auto wait = Commit(*first_, 0);
  world_.clock().AdvanceMs(1000);
  world_.job().Tick();
  ExpectError(*wait, ErrorCode::kDeadline, {"it waits for the other nodes"});
  report->done(StepDecision{Outcome::kApplied, ""});
  report->done(StepDecision{Outcome::kApplied, ""});  // a late repeat changes nothing
  EXPECT_EQ(world_.job().current_step(), 1u);
}

TEST_F(JobCommit, TooManyWaitsOfOneSessionAreRefused) {
  std::vector<std::unique_ptr<CommitWait>> waits;
  for (int i = 0; i < 16; ++i) waits.push_back(Commit(*first_, 0));
  ExpectError(*Commit(*first_, 0), ErrorCode::kResourceExhausted, {"already waits 16 times"});
}

}  // namespace
}  // namespace luwu
