// SessionService over real gRPC: ranks, fencing, leases, regions, and everything it refuses.
#include <functional>

#include "common/wire/board.h"
#include "common/wire/shard_map.h"
#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

class SessionServiceTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    epoch_ = MustCreate(SmallSpec("job", 2));
  }

  uint64_t BoardBytesOfJob() const {
    const JobSpec spec = SmallSpec("job", 2);
    return ShardMap(spec, Placement(daemon_->config().nodes, spec), 0).board_bytes();
  }
  v1::ExchangeRegionsRequest RegionsRequest(uint64_t session) const {
    v1::ExchangeRegionsRequest request;
    request.set_session_id(session);
    request.set_connections(2);
    v1::RegionDescriptor* board = request.add_regions();
    board->set_id(kRegionBoard);
    board->set_bytes(BoardBytesOfJob());
    board->set_remote_write(true);
    return request;
  }
  StatusOr<v1::ExchangeRegionsResponse> Exchange(const v1::ExchangeRegionsRequest& request) {
    return Call(sessions_, &v1::SessionService::Stub::ExchangeRegions, request);
  }

  uint64_t epoch_ = 0;
};

TEST_F(SessionServiceTest, OpenTellsSecretAndLease) {
  const auto first = Open(OpenRequest("job", epoch_, 0));
  ASSERT_TRUE(first.ok()) << ToString(first.status());
  EXPECT_NE(first->session_id(), 0u);
  EXPECT_EQ(first->secret().size(), 32u);
  EXPECT_EQ(first->heartbeat_ms(), 10'000u);
  EXPECT_EQ(first->lease_ms(), 60'000u);
  EXPECT_EQ(first->current_step(), 0u);
  const auto second = Open(OpenRequest("job", epoch_, 1));
  ASSERT_TRUE(second.ok()) << ToString(second.status());
  EXPECT_NE(second->session_id(), first->session_id());
  EXPECT_NE(second->secret(), first->secret());
}

TEST_F(SessionServiceTest, ALiveHolderKeepsItsRank) {
  const uint64_t holder = MustOpen("job", epoch_, 1);
  const Status refused = Open(OpenRequest("job", epoch_, 1)).status();
  EXPECT_ERROR(refused, ErrorCode::kRankTaken, "4001");  // the holder's pid
  EXPECT_TRUE(Heartbeat(holder).ok());
}

TEST_F(SessionServiceTest, ARestartedWorkerFencesItsFormerSelf) {
  const uint64_t former = MustOpen("job", epoch_, 1);
  const auto restarted = Open(OpenRequest("job", epoch_, 1, 1));
  ASSERT_TRUE(restarted.ok()) << ToString(restarted.status());
  EXPECT_ERROR(Heartbeat(former), ErrorCode::kFenced, "");
  EXPECT_ERROR(Begin(former, 0), ErrorCode::kFenced, "");
  EXPECT_ERROR(Commit(former, 0, 1000).status(), ErrorCode::kFenced, "");
  EXPECT_ERROR(Load({Piece(former, 0, 0, 0, {1})}).status(), ErrorCode::kFenced, "");
  EXPECT_ERROR(FinishLoad(former, true), ErrorCode::kFenced, "");
  EXPECT_ERROR(Exchange(RegionsRequest(former)).status(), ErrorCode::kFenced, "");
  EXPECT_TRUE(Heartbeat(restarted->session_id()).ok());
}

TEST_F(SessionServiceTest, AClosedSessionIsGoneAndItsRankIsFree) {
  const uint64_t session = MustOpen("job", epoch_, 0);
  ASSERT_TRUE(CloseSession(session).ok());
  EXPECT_ERROR(Heartbeat(session), ErrorCode::kFenced, "");
  EXPECT_ERROR(CloseSession(session), ErrorCode::kFenced, "");
  EXPECT_TRUE(Open(OpenRequest("job", epoch_, 0)).ok());
}

TEST_F(SessionServiceTest, RefusesBadOpens) {
  struct Case {
    const char* what;
    std::function<void(v1::OpenSessionRequest*)> spoil;
    ErrorCode code;
    const char* text;
  };
  using Request = v1::OpenSessionRequest;
  const Case cases[] = {
      {"unknown job", [](Request* r) { r->set_job("nope"); }, ErrorCode::kNotFound, "'nope'"},
      {"job of no name", [](Request* r) { r->clear_job(); }, ErrorCode::kNotFound, "''"},
      {"endless job name", [](Request* r) { r->set_job(std::string(5000, 'j')); },
       ErrorCode::kInvalidArgument, "5000"},
      {"no epoch", [](Request* r) { r->set_epoch(0); }, ErrorCode::kInvalidArgument, "epoch"},
      {"stale epoch", [](Request* r) { r->set_epoch(r->epoch() ^ 1); }, ErrorCode::kStaleEpoch,
       "job"},
      {"rank beyond the world", [](Request* r) { r->set_rank(2); }, ErrorCode::kInvalidArgument,
       "rank 2"},
      {"rank far beyond", [](Request* r) { r->set_rank(~0u); }, ErrorCode::kInvalidArgument,
       "rank"},
      {"endless host", [](Request* r) { r->set_host(std::string(256, 'h')); },
       ErrorCode::kInvalidArgument, "host"},
      {"line break in host", [](Request* r) { r->set_host("a\nb"); }, ErrorCode::kInvalidArgument,
       "host"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    v1::OpenSessionRequest request = OpenRequest("job", epoch_, 0);
    c.spoil(&request);
    EXPECT_ERROR(Open(request).status(), c.code, c.text);
  }
}

TEST_F(SessionServiceTest, ExchangeTellsTheDaemonsRegions) {
  const uint64_t session = MustOpen("job", epoch_, 0);
  const auto got = Exchange(RegionsRequest(session));
  ASSERT_TRUE(got.ok()) << ToString(got.status());
  const JobSpec spec = SmallSpec("job", 2);
  const ShardMap map(spec, Placement(daemon_->config().nodes, spec), 0);
  ASSERT_EQ(got->regions_size(), 2);
  for (const v1::RegionDescriptor& region : got->regions()) {
    if (region.id() == kRegionWeights) {
      EXPECT_EQ(region.bytes(), map.weights_bytes());
      EXPECT_FALSE(region.remote_write());
    } else {
      EXPECT_EQ(region.id(), kRegionInbox);
      EXPECT_EQ(region.bytes(), map.inbox_bytes());
      EXPECT_TRUE(region.remote_write());
    }
  }
}

TEST_F(SessionServiceTest, RefusesBadRegions) {
  struct Case {
    const char* what;
    std::function<void(v1::ExchangeRegionsRequest*)> spoil;
    ErrorCode code;
  };
  using Request = v1::ExchangeRegionsRequest;
  const Case cases[] = {
      {"unknown session", [](Request* r) { r->set_session_id(1); }, ErrorCode::kFenced},
      {"no regions", [](Request* r) { r->clear_regions(); }, ErrorCode::kInvalidArgument},
      {"two boards", [](Request* r) { *r->add_regions() = r->regions(0); },
       ErrorCode::kInvalidArgument},
      {"small board", [](Request* r) { r->mutable_regions(0)->set_bytes(4096 - 64); },
       ErrorCode::kInvalidArgument},
      {"huge board", [](Request* r) { r->mutable_regions(0)->set_bytes(~0ull); },
       ErrorCode::kInvalidArgument},
      {"read-only board", [](Request* r) { r->mutable_regions(0)->set_remote_write(false); },
       ErrorCode::kInvalidArgument},
      {"the daemon's own region", [](Request* r) { r->mutable_regions(0)->set_id(kRegionInbox); },
       ErrorCode::kInvalidArgument},
      {"many regions",
       [](Request* r) {
         const v1::RegionDescriptor board = r->regions(0);
         for (int i = 0; i < 100; ++i) *r->add_regions() = board;
       },
       ErrorCode::kInvalidArgument},
      {"no connections", [](Request* r) { r->set_connections(0); }, ErrorCode::kInvalidArgument},
      {"too many connections", [](Request* r) { r->set_connections(17); },
       ErrorCode::kInvalidArgument},
  };
  const uint64_t session = MustOpen("job", epoch_, 0);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    v1::ExchangeRegionsRequest request = RegionsRequest(session);
    c.spoil(&request);
    EXPECT_ERROR(Exchange(request).status(), c.code, "");
  }
  EXPECT_TRUE(Exchange(RegionsRequest(session)).ok());
}

TEST_F(SessionServiceTest, UnknownSessionsAreFenced) {
  EXPECT_ERROR(Heartbeat(0), ErrorCode::kFenced, "");
  EXPECT_ERROR(Heartbeat(12345), ErrorCode::kFenced, "");
  EXPECT_ERROR(CloseSession(12345), ErrorCode::kFenced, "");
}

class ShortLeaseTest : public DaemonTest {
 protected:
  DaemonConfig MakeConfig() override {
    DaemonConfig config = DaemonTest::MakeConfig();
    config.heartbeat_ms = 50;
    config.lease_ms = 200;
    return config;
  }
};

TEST_F(ShortLeaseTest, ASilentWorkerLosesItsSessionAndIsNamedToTheOthers) {
  const uint64_t epoch = MustCreate(FrozenSpec("job", 2));
  const uint64_t silent = MustOpen("job", epoch, 1);
  const uint64_t live = MustOpen("job", epoch, 0);
  ASSERT_TRUE(FinishLoad(live, true).ok());
  ASSERT_TRUE(Begin(live, 0).ok());
  Status status = OkStatus();
  // Each commit may end at its own deadline first; the lease decides when the worker is lost.
  for (int i = 0; i < 100 && CodeOf(status) != ErrorCode::kWorkerLost; ++i) {
    ASSERT_TRUE(Heartbeat(live).ok());
    status = Commit(live, 0, 100).status();
    ASSERT_FALSE(status.ok());
  }
  EXPECT_ERROR(status, ErrorCode::kWorkerLost, "rank 1");
  EXPECT_ERROR(status, ErrorCode::kWorkerLost, "test-host");
  EXPECT_ERROR(status, ErrorCode::kWorkerLost, "4001");
  EXPECT_ERROR(Heartbeat(silent), ErrorCode::kFenced, "");
  // It comes back with the same restart count, as its former session is dead, and all go on.
  const uint64_t back = MustOpen("job", epoch, 1);
  ASSERT_TRUE(Begin(back, 0).ok());
  ASSERT_TRUE(Heartbeat(live).ok());
  const auto committed = Commit(live, 0, 5000);
  ASSERT_TRUE(committed.ok()) << ToString(committed.status());
  EXPECT_EQ(committed->outcome(), v1::OUTCOME_APPLIED);
}

TEST_F(ShortLeaseTest, StatusNamesTheLostWorker) {
  const uint64_t epoch = MustCreate(FrozenSpec("job", 2));
  MustOpen("job", epoch, 1);
  v1::DaemonStatus status = GetStatus();
  const TimePoint deadline = DeadlineAfter(20'000);
  while (status.checks_size() == 0 && MillisecondsUntil(deadline) > 0) status = GetStatus();
  ASSERT_EQ(status.checks_size(), 1);
  EXPECT_EQ(status.checks(0).name(), "WORKER_LOST");
  EXPECT_NE(status.checks(0).summary().find("rank 1"), std::string::npos);
  EXPECT_NE(status.checks(0).summary().find("pid 4001"), std::string::npos);
  EXPECT_EQ(status.overall(), v1::SEVERITY_ERR);
}

}  // namespace
}  // namespace luwu
