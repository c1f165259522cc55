// How ranks change hands.
#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::CommitWait;
using fakes::JobWorld;
using fakes::Push;

class JobSessions : public testing::Test {
 protected:
  JobSessions() : world_(fakes::SmallSpec(2, {fakes::Layer("a", 64)})), gradient_(64, 0.5f) {
    world_.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
  }
  Push Gradient() { return {0, 0, 0, 0, true, false, &gradient_}; }

  JobWorld world_;
  std::vector<float> gradient_;
};

TEST_F(JobSessions, ARankOutsideTheWorldIsRefused) {
  const auto worker = world_.Join(2);
  EXPECT_EQ(CodeOf(worker->open_status()), ErrorCode::kInvalidArgument);
  EXPECT_NE(MessageOf(worker->open_status()).find("ranks 0 to 1"), std::string::npos);
}

TEST_F(JobSessions, ALiveHolderKeepsItsRank) {
  const auto holder = world_.Join(0, 3);
  const auto other = world_.Join(0, 3);
  EXPECT_EQ(CodeOf(other->open_status()), ErrorCode::kRankTaken);
  EXPECT_NE(MessageOf(other->open_status()).find("pid 100 on host host0 (restart count 3"),
            std::string::npos)
      << MessageOf(other->open_status());
  EXPECT_TRUE(holder->session().Check().ok());
}

TEST_F(JobSessions, AHigherRestartCountTakesTheRankOver) {
  const auto former = world_.Join(0, 0);
  const auto latter = world_.Join(0, 1);
  ASSERT_TRUE(latter->open_status().ok());
  EXPECT_EQ(CodeOf(former->Begin(0, {fakes::AdamHyper()})), ErrorCode::kFenced);
  EXPECT_EQ(CodeOf(former->session().Renew()), ErrorCode::kFenced);
  EXPECT_EQ(CodeOf(world_.table().Find(former->session().id()).status()), ErrorCode::kFenced);
  EXPECT_TRUE(latter->Begin(0, {fakes::AdamHyper()}).ok());
  EXPECT_EQ(world_.job().open_sessions(), 1u);
}

TEST_F(JobSessions, AHolderWhoseLinkIsGoneCanBeReplaced) {
  const auto former = world_.Join(0, 5);
  former->Unlink(Error(ErrorCode::kUnavailable, "reset"));
  EXPECT_TRUE(former->session().Check().ok()) << "an unlinked session lives on";
  EXPECT_TRUE(world_.Join(0, 0)->open_status().ok());
}

TEST_F(JobSessions, AHolderWhoseLeaseHasExpiredCanBeReplaced) {
  const auto former = world_.Join(0, 5);
  world_.Pass(14000);
  ASSERT_TRUE(former->session().Renew().ok());
  world_.Pass(14000);
  EXPECT_EQ(CodeOf(world_.Join(0, 0)->open_status()), ErrorCode::kRankTaken);
  world_.Pass(1000);
  EXPECT_TRUE(world_.Join(0, 0)->open_status().ok());
}

TEST_F(JobSessions, AnExpiredLeaseFencesTheWorker) {
  const auto worker = world_.Join(0);
  world_.Pass(15000);
  world_.job().Tick();
  EXPECT_EQ(CodeOf(worker->session().Renew()), ErrorCode::kFenced);
  EXPECT_NE(MessageOf(worker->session().Check()).find("no heartbeat for 15000 ms"),
            std::string::npos);
  EXPECT_EQ(world_.job().open_sessions(), 0u);
}

// A stopped process, or a paused machine, hears no heartbeats.
TEST_F(JobSessions, ADaemonThatWasPausedFencesNobodyForIt) {
  const auto worker = world_.Join(0, 5);
  world_.Pass(14000);
  world_.clock().AdvanceMs(60000);
  EXPECT_EQ(CodeOf(world_.Join(0, 0)->open_status()), ErrorCode::kRankTaken);
  world_.job().Tick();
  EXPECT_TRUE(worker->session().Check().ok());
  world_.Pass(900);
  EXPECT_TRUE(worker->session().Check().ok());
  world_.Pass(200);
  EXPECT_EQ(CodeOf(worker->session().Check()), ErrorCode::kFenced) << "what was left of its lease";
}

TEST_F(JobSessions, TheGradientsOfAFormerSelfDoNotCount) {
  auto former = world_.Join(0, 0);
  ASSERT_TRUE(former->Begin(0, {fakes::AdamHyper()}).ok());
  former->Send(Gradient(), 0);
  EXPECT_EQ(world_.job().Snapshot().parked_slots, 1u);
  const auto latter = world_.Join(0, 1);
  EXPECT_EQ(world_.job().Snapshot().parked_slots, 0u);
  EXPECT_EQ(latter->board().released(0), 0u) << "a new session begins with unused slots";
}

TEST_F(JobSessions, AFormerSelfCannotWriteIntoTheNextInbox) {
  const auto former = world_.Join(0, 0);
  const auto latter = world_.Join(0, 1);
  EXPECT_NE(former->SlotBytes(0).data(), latter->SlotBytes(0).data());
  former->Write(Gradient(), 0);
  for (const std::byte byte : latter->SlotBytes(0)) ASSERT_EQ(byte, std::byte{0});
}

TEST_F(JobSessions, AnInboxNobodyHasSeenIsUsedAgain) {
  const WorkerIdentity identity{0, 0, "h", 1};
  const auto unseen = world_.job().OpenSession(identity);
  ASSERT_TRUE(unseen.ok());
  const std::byte* inbox = (*unseen)->inbox().data();
  world_.job().CloseSession(*unseen);
  const auto worker = world_.Join(0);
  EXPECT_EQ(worker->SlotBytes(0).data(), inbox);
}

TEST_F(JobSessions, AFaultyWorkerKeepsItsLinkUntilItsLeaseEndsAndCanBeReplaced) {
  const auto faulty = world_.Join(0, 4);
  faulty->Ring(77);
  world_.job().Tick();
  EXPECT_TRUE(faulty->endpoint().connected());
  EXPECT_EQ(faulty->board().fault(), ErrorCode::kInvalidArgument);
  const auto fresh = world_.Join(0, 0);
  EXPECT_TRUE(fresh->open_status().ok());
  EXPECT_EQ(fresh->board().fault(), ErrorCode::kOk);
}

TEST_F(JobSessions, ANewLinkGetsTheWholeBoard) {
  const auto worker = world_.Join(0);
  ASSERT_TRUE(worker->Begin(0, {fakes::AdamHyper()}).ok());
  worker->Send({0, 0, 0, 0, true, false, nullptr}, 3);
  std::memset(worker->board().span().data(), 0xee, worker->board().span().size());
  worker->Unlink(Error(ErrorCode::kUnavailable, "reset"));
  worker->Link(&world_.table(), false);
  EXPECT_EQ(worker->board().magic(), kBoardMagic);
  EXPECT_EQ(worker->board().epoch(), JobWorld::kEpoch);
  EXPECT_EQ(worker->board().published(0), 1u);
  EXPECT_EQ(worker->board().released(3), 1u);
  EXPECT_EQ(worker->board().released(0), 0u);
  EXPECT_EQ(worker->board().fault(), ErrorCode::kOk);
}

TEST_F(JobSessions, ShutdownEndsSessionsAndRefusesNewOnes) {
  const auto worker = world_.Join(0);
  ASSERT_TRUE(worker->Begin(0, {fakes::AdamHyper()}).ok());
  CommitWait wait;
  world_.job().AwaitCommit(worker->session_ptr(), 0, TimePoint::max(), wait.Callback());
  world_.job().Shutdown(Error(ErrorCode::kUnavailable, "the daemon stops"));
  EXPECT_EQ(CodeOf(wait.Wait().status()), ErrorCode::kUnavailable);
  EXPECT_EQ(CodeOf(worker->Begin(0, {fakes::AdamHyper()})), ErrorCode::kUnavailable);
  EXPECT_EQ(CodeOf(world_.Join(1)->open_status()), ErrorCode::kUnavailable);
}

TEST_F(JobSessions, TheSnapshotShowsTheWorkers) {
  const auto worker = world_.Join(1, 2);
  ASSERT_TRUE(worker->Begin(0, {fakes::AdamHyper()}).ok());
  worker->Send(Gradient(), 0);
  world_.clock().AdvanceMs(1000);
  const JobSnapshot snapshot = world_.job().Snapshot();
  ASSERT_EQ(snapshot.workers.size(), 1u);
  EXPECT_EQ(snapshot.workers[0].rank, 1u);
  EXPECT_EQ(snapshot.workers[0].host, "host1");
  EXPECT_EQ(snapshot.workers[0].restart_count, 2u);
  EXPECT_EQ(snapshot.workers[0].transport, "shm");
  EXPECT_EQ(snapshot.workers[0].lease_left_ms, 14000u);
  EXPECT_EQ(snapshot.workers[0].pushed_bytes, 256u);
  EXPECT_EQ(snapshot.workers[0].slots_held, 1u);
  EXPECT_EQ(snapshot.state, JobState::kTraining);
}

}  // namespace
}  // namespace luwu
