// Which point a job goes back to, and what each answer of a node leads to.
#include "server/cluster/recovery_round.h"

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using Phase = RecoveryRound::Phase;

constexpr uint64_t kOld = 7;
constexpr uint64_t kOlder = 6;

persist::Point PointAt(uint64_t step, uint64_t epoch = kOld) {
  return {.step = step, .epoch = epoch};
}

StoredPoints Stored(std::vector<persist::Point> points,
                    std::vector<persist::Checkpoint> checkpoints = {}) {
  return {.points = std::move(points), .checkpoints = std::move(checkpoints)};
}

RecoveryRound RoundOf(uint32_t nodes, const std::string& checkpoint = "",
                      std::vector<DoubtfulPoint> doubtful = {}) {
  return RecoveryRound({.job = "gpt",
                        .nodes = fakes::NodeList(nodes),
                        .lead = 0,
                        .checkpoint = checkpoint,
                        .doubtful = std::move(doubtful)});
}

TEST(RecoveryRound, GoesBackToTheNewestPointOfAll) {
  RecoveryRound round = RoundOf(3);
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{0, 1, 2}));
  round.OnPrepared(1, Stored({PointAt(10), PointAt(20)}));
  round.OnPrepared(0, Stored({PointAt(20), PointAt(30)}));
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{2}));
  EXPECT_EQ(round.phase(), Phase::kPreparing);
  round.OnPrepared(2, Stored({PointAt(20), PointAt(30)}));
  ASSERT_EQ(round.phase(), Phase::kRollingBack);
  EXPECT_EQ(round.target(), PointAt(20));
}

TEST(RecoveryRound, LeadComesLast) {
  RecoveryRound round = RoundOf(3);
  for (uint32_t node = 0; node < 3; ++node) round.OnPrepared(node, Stored({PointAt(5)}));
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{1, 2}));
  round.OnRolledBack(2, OkStatus());
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{1}));
  round.OnRolledBack(1, OkStatus());
  EXPECT_EQ(round.phase(), Phase::kRollingBackLead);
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{0}));
  round.OnRolledBack(0, OkStatus());
  EXPECT_EQ(round.phase(), Phase::kDone);
  EXPECT_TRUE(round.Pending().empty());
}

TEST(RecoveryRound, OneNodeNeedsNobodyElse) {
  RecoveryRound round = RoundOf(1);
  round.OnPrepared(0, Stored({PointAt(3)}));
  EXPECT_EQ(round.phase(), Phase::kRollingBackLead);
  round.OnRolledBack(0, OkStatus());
  EXPECT_EQ(round.phase(), Phase::kDone);
}

TEST(RecoveryRound, SameStepOfAnotherEpochIsAnotherPoint) {
  RecoveryRound round = RoundOf(2);
  round.OnPrepared(0, Stored({PointAt(10, kOlder), PointAt(20, kOld)}));
  round.OnPrepared(1, Stored({PointAt(10, kOlder), PointAt(20, kOlder)}));
  ASSERT_EQ(round.phase(), Phase::kRollingBack);
  EXPECT_EQ(round.target(), PointAt(10, kOlder));
}

TEST(RecoveryRound, NodesWithoutWeightHaveNoPart) {
  std::vector<Node> nodes = fakes::NodeList(3);
  nodes[0].weight = 0;
  RecoveryRound round({.job = "gpt", .nodes = nodes, .lead = 1});
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{1, 2}));
  round.OnPrepared(1, Stored({PointAt(4)}));
  round.OnPrepared(2, Stored({PointAt(4)}));
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{2}));
}

TEST(RecoveryRound, WithoutACommonPointItSaysWhatEachNodeHas) {
  RecoveryRound round = RoundOf(2);
  round.OnPrepared(0, Stored({PointAt(10)}));
  round.OnPrepared(1, Stored({}));
  ASSERT_EQ(round.phase(), Phase::kImpossible);
  EXPECT_NE(round.reason().find("node n0 has of step 10"), std::string::npos) << round.reason();
  EXPECT_NE(round.reason().find("node n1 has none"), std::string::npos) << round.reason();
}

TEST(RecoveryRound, NodeWithoutTheJobEndsIt) {
  RecoveryRound round = RoundOf(2);
  round.OnPrepared(0, Stored({PointAt(10)}));
  round.OnPrepared(1, Error(ErrorCode::kNotFound, "node n1 has no job gpt"));
  EXPECT_EQ(round.phase(), Phase::kImpossible);
}

TEST(RecoveryRound, NodeThatIsDownIsAskedAgain) {
  RecoveryRound round = RoundOf(2);
  round.OnPrepared(0, Stored({PointAt(10)}));
  round.OnPrepared(1, Error(ErrorCode::kUnavailable, "connection refused"));
  EXPECT_EQ(round.phase(), Phase::kPreparing);
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{1}));
  EXPECT_NE(round.reason().find("n1"), std::string::npos);
  round.OnPrepared(1, Stored({PointAt(10)}));
  round.OnRolledBack(1, Error(ErrorCode::kDeadline, "still reading"));
  EXPECT_EQ(round.phase(), Phase::kRollingBack);
  EXPECT_EQ(round.Pending(), (std::vector<uint32_t>{1}));
}

TEST(RecoveryRound, NodeThatWasRestartedMeansANewRound) {
  for (const ErrorCode code : {ErrorCode::kState, ErrorCode::kNotFound, ErrorCode::kStaleEpoch}) {
    RecoveryRound round = RoundOf(2);
    round.OnPrepared(0, Stored({PointAt(10)}));
    round.OnPrepared(1, Stored({PointAt(10)}));
    round.OnRolledBack(1, Error(code, "not prepared"));
    EXPECT_EQ(round.phase(), Phase::kAgain);
    EXPECT_TRUE(round.doubtful().empty());
    EXPECT_EQ(round.pause_ms(), 0u);
  }
}

// The round that follows one in which node 0 could not read the target.
RecoveryRound AfterFailedRead(const RecoveryRound& before, const StoredPoints& both) {
  RecoveryRound round = RoundOf(2, before.checkpoint(), before.doubtful());
  round.OnPrepared(0, both);
  round.OnPrepared(1, both);
  if (round.phase() != Phase::kRollingBack) return round;
  round.OnRolledBack(1, OkStatus());
  round.OnRolledBack(0, Error(ErrorCode::kCorrupt, "shard 3: wrong checksum"));
  return round;
}

// A read that failed once made the job go back further than it had to, or lost it.
TEST(RecoveryRound, PointThatCannotBeReadIsTriedAgainWithGrowingPauses) {
  const StoredPoints both = Stored({PointAt(10), PointAt(20)});
  RecoveryRound round = AfterFailedRead(RoundOf(2), both);
  uint64_t pause_ms = 0;
  for (uint32_t failures = 1; failures < RecoveryRound::kReadsMax; ++failures) {
    ASSERT_EQ(round.phase(), Phase::kAgain);
    EXPECT_EQ(round.target(), PointAt(20));
    EXPECT_GT(round.pause_ms(), pause_ms);
    pause_ms = round.pause_ms();
    EXPECT_NE(round.reason().find("node n0: shard 3"), std::string::npos) << round.reason();
    round = AfterFailedRead(round, both);
  }
  // Often enough: the one before it.
  ASSERT_EQ(round.phase(), Phase::kAgain);
  EXPECT_EQ(round.pause_ms(), 0u);
  RecoveryRound next = RoundOf(2, "", round.doubtful());
  next.OnPrepared(0, both);
  next.OnPrepared(1, both);
  ASSERT_EQ(next.phase(), Phase::kRollingBack);
  EXPECT_EQ(next.target(), PointAt(10));
}

TEST(RecoveryRound, ReadThatSucceedsInTheEndLosesNothing) {
  const StoredPoints both = Stored({PointAt(10), PointAt(20)});
  RecoveryRound failed = AfterFailedRead(RoundOf(2), both);
  RecoveryRound round = RoundOf(2, "", failed.doubtful());
  round.OnPrepared(0, both);
  round.OnPrepared(1, both);
  round.OnRolledBack(1, OkStatus());
  round.OnRolledBack(0, OkStatus());
  ASSERT_EQ(round.phase(), Phase::kDone);
  EXPECT_EQ(round.target(), PointAt(20));
}

TEST(RecoveryRound, WithoutAPointThatCanBeReadItNamesNodeAndShard) {
  const StoredPoints both = Stored({PointAt(20)});
  RecoveryRound round = AfterFailedRead(RoundOf(2), both);
  for (uint32_t i = 0; i < RecoveryRound::kReadsMax; ++i) round = AfterFailedRead(round, both);
  ASSERT_EQ(round.phase(), Phase::kImpossible);
  EXPECT_NE(round.reason().find("step 20 failed 6 times: node n0: shard 3"), std::string::npos)
      << round.reason();
}

TEST(RecoveryRound, CheckpointIsTheTargetWhenAllHaveTheSame) {
  const persist::Checkpoint kept = {.name = "best", .point = PointAt(4)};
  RecoveryRound round = RoundOf(2, "best");
  round.OnPrepared(0, Stored({PointAt(10)}, {kept}));
  round.OnPrepared(1, Stored({PointAt(10)}, {{.name = "other", .point = PointAt(6)}, kept}));
  ASSERT_EQ(round.phase(), Phase::kRollingBack);
  EXPECT_EQ(round.target(), PointAt(4));
}

// Bug: the round of a job that was deleted asked again for ever.
TEST(RecoveryRound, RestoreThatCannotBeNotedEndsOrWaits) {
  const persist::Checkpoint kept = {.name = "best", .point = PointAt(4)};
  for (const ErrorCode code :
       {ErrorCode::kNotFound, ErrorCode::kUnsupported, ErrorCode::kJobFailed}) {
    RecoveryRound round = RoundOf(2, "best");
    for (uint32_t node = 0; node < 2; ++node) round.OnPrepared(node, Stored({}, {kept}));
    round.OnNoted(MakeError(code, "there is no job 'gpt'"));
    EXPECT_EQ(round.phase(), Phase::kImpossible);
    EXPECT_EQ(round.reason(), "node n0: there is no job 'gpt'");
    EXPECT_TRUE(round.Pending().empty());
  }
  RecoveryRound round = RoundOf(2, "best");
  for (uint32_t node = 0; node < 2; ++node) round.OnPrepared(node, Stored({}, {kept}));
  round.OnNoted(Error(ErrorCode::kCorrupt, "the storage takes no writes"));
  EXPECT_EQ(round.phase(), Phase::kRollingBack);
  EXPECT_EQ(round.reason(), "waiting for node n0: the storage takes no writes");
  round.OnNoted(OkStatus());
  EXPECT_EQ(round.phase(), Phase::kRollingBack);
  round.GiveUp("job 'gpt' was deleted");
  EXPECT_EQ(round.phase(), Phase::kImpossible);
}

TEST(RecoveryRound, SaysWhatKindOfErrorItWaitsFor) {
  RecoveryRound round = RoundOf(2);
  for (uint32_t node = 0; node < 2; ++node) round.OnPrepared(node, Stored({PointAt(4)}));
  EXPECT_EQ(round.waits_code(), ErrorCode::kOk);
  round.OnRolledBack(1, Error(ErrorCode::kResourceExhausted, "3 MiB are missing"));
  EXPECT_EQ(round.waits_code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(round.phase(), Phase::kRollingBack);
  round.OnRolledBack(1, OkStatus());
  EXPECT_EQ(round.waits_code(), ErrorCode::kOk);
}

TEST(RecoveryRound, CheckpointOfSomeNodesIsNoTarget) {
  const persist::Checkpoint kept = {.name = "best", .point = PointAt(4)};
  RecoveryRound missing = RoundOf(2, "best");
  missing.OnPrepared(0, Stored({PointAt(10)}, {kept}));
  missing.OnPrepared(1, Stored({PointAt(10)}));
  EXPECT_EQ(missing.phase(), Phase::kImpossible);

  RecoveryRound differs = RoundOf(2, "best");
  differs.OnPrepared(0, Stored({PointAt(10)}, {kept}));
  differs.OnPrepared(1, Stored({PointAt(10)}, {{.name = "best", .point = PointAt(6)}}));
  EXPECT_EQ(differs.phase(), Phase::kImpossible);
}

}  // namespace
}  // namespace luwu
