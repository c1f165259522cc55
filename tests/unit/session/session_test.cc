#include "server/session/session.h"

#include <optional>

#include <gtest/gtest.h>

#include "server/session/session_table.h"
#include "tests/fakes/fake_board.h"
#include "tests/fakes/fake_clock.h"

namespace luwu {
namespace {

using fakes::FakeBoard;
using fakes::FakeEndpoint;

constexpr uint32_t kSlots = 2;
constexpr uint64_t kShards = 3;

class Listening final : public SlotSink {
 public:
  void OnSlot(Session&, uint32_t slot) override { slots.push_back(slot); }
  void OnWant(Session&, uint32_t immediate) override { wants.push_back(immediate); }
  void OnUnlinked(Session&, const Status& why) override { unlinked = why; }
  std::vector<uint32_t> slots;
  std::vector<uint32_t> wants;
  std::optional<Status> unlinked;
};

class SessionTest : public testing::Test {
 protected:
  SessionTest() : board_(kSlots, kShards) {
    SessionOptions options;
    options.id = 77;
    options.identity = {1, 4, "gpu-7", 4242};
    options.sink = &sink_;
    options.clock = &clock_;
    options.lease_ms = 1000;
    options.board = {5, kSlots, kShards};
    options.weights = *transport::LocalRegion::Create("w", 8192, transport::Access::kRemoteRead);
    options.inbox = *transport::LocalRegion::Create("i", 4096, transport::Access::kRemoteWrite);
    session_ = std::make_shared<Session>(std::move(options));
    table_.Insert(session_);
  }
  ~SessionTest() override {
    session_->CloseLink();
    table_.Sweep();
  }

  transport::RegionDescriptor Board() const {
    return {kRegionBoard, BoardBytes(kSlots, kShards), transport::Access::kRemoteWrite};
  }
  std::unique_ptr<FakeEndpoint> Endpoint() { return std::make_unique<FakeEndpoint>(&board_, true); }

  fakes::FakeClock clock_;
  Listening sink_;
  FakeBoard board_;
  SessionTable table_;
  std::shared_ptr<Session> session_;
};

TEST_F(SessionTest, ExchangesExactlyTheBoardForWeightsAndInbox) {
  const auto exposed = session_->SetClientRegions({Board()}, 2);
  ASSERT_TRUE(exposed.ok());
  EXPECT_EQ(*exposed, (std::vector<transport::RegionDescriptor>{
                          {kRegionWeights, 8192, transport::Access::kRemoteRead},
                          {kRegionInbox, 4096, transport::Access::kRemoteWrite}}));
  const auto terms = table_.Lookup(77);
  ASSERT_TRUE(terms.ok());
  EXPECT_EQ(terms->secret, session_->secret());
  EXPECT_EQ(terms->connections, 2u);
  EXPECT_EQ(terms->expected, (std::vector{Board()}));
  ASSERT_EQ(terms->exposed.size(), 2u);
  EXPECT_EQ(terms->exposed[0].id, kRegionWeights);
  EXPECT_EQ(terms->exposed[1].id, kRegionInbox);
}

TEST_F(SessionTest, RefusesOtherRegionsAndConnectionCounts) {
  const auto refused = [&](const std::vector<transport::RegionDescriptor>& regions,
                           uint32_t connections) {
    return CodeOf(session_->SetClientRegions(regions, connections).status()) ==
           ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({}, 1));
  EXPECT_TRUE(refused({Board(), Board()}, 1));
  EXPECT_TRUE(refused({{kRegionBoard, 4095, transport::Access::kRemoteWrite}}, 1));
  EXPECT_TRUE(refused({{kRegionInbox, Board().bytes, transport::Access::kRemoteWrite}}, 1));
  EXPECT_TRUE(refused({{kRegionBoard, Board().bytes, transport::Access::kRemoteRead}}, 1));
  EXPECT_TRUE(refused({Board()}, 0));
  EXPECT_TRUE(refused({Board()}, transport::kConnectionsMax + 1));
  EXPECT_EQ(CodeOf(table_.Lookup(77).status()), ErrorCode::kState) << "nothing was exchanged";
}

TEST_F(SessionTest, DoorbellsAndTheEndOfTheLinkReachTheSink) {
  ASSERT_TRUE(session_->SetClientRegions({Board()}, 1).ok());
  EXPECT_EQ(session_->link_state(), Session::LinkState::kNever);
  transport::LinkEvents* events = table_.OnLink(77, Endpoint());
  EXPECT_EQ(session_->link_state(), Session::LinkState::kUp);
  EXPECT_EQ(session_->transport_name(), "shm");
  EXPECT_EQ(board_.magic(), kBoardMagic);
  events->OnNotify(1);
  events->OnNotify(0);
  EXPECT_EQ(sink_.slots, (std::vector<uint32_t>{1, 0}));
  events->OnDisconnect(Error(ErrorCode::kUnavailable, "peer is gone"));
  EXPECT_EQ(session_->link_state(), Session::LinkState::kDown);
  EXPECT_EQ(session_->transport_name(), "");
  ASSERT_TRUE(sink_.unlinked);
  EXPECT_EQ(MessageOf(*sink_.unlinked), "peer is gone");
}

TEST_F(SessionTest, HeartbeatsRenewTheLease) {
  clock_.AdvanceMs(900);
  EXPECT_EQ(session_->LeaseLeftMs(clock_.Now()), 100u);
  ASSERT_TRUE(session_->Renew().ok());
  clock_.AdvanceMs(999);
  EXPECT_FALSE(session_->LeaseExpired(clock_.Now()));
  clock_.AdvanceMs(1);
  EXPECT_TRUE(session_->LeaseExpired(clock_.Now()));
  EXPECT_EQ(session_->LeaseLeftMs(clock_.Now()), 0u);
}

TEST_F(SessionTest, TheFirstEndStays) {
  EXPECT_TRUE(session_->EndWithFault(Error(ErrorCode::kLayerClosed, "first")));
  clock_.AdvanceMs(5);
  EXPECT_FALSE(session_->EndFenced(Error(ErrorCode::kFenced, "second")));
  EXPECT_EQ(MessageOf(session_->Check()), "first");
  EXPECT_EQ(session_->ended_at(clock_.Now()), clock_.Now() - Milliseconds(5));
  EXPECT_EQ(CodeOf(session_->Renew()), ErrorCode::kLayerClosed);
  EXPECT_EQ(CodeOf(session_->SetClientRegions({Board()}, 1).status()), ErrorCode::kLayerClosed);
  EXPECT_EQ(CodeOf(table_.Lookup(77).status()), ErrorCode::kLayerClosed);
  EXPECT_TRUE(session_->fenced());
}

TEST_F(SessionTest, AFaultShowsOnTheBoardOverALinkThatStays) {
  ASSERT_TRUE(session_->SetClientRegions({Board()}, 1).ok());
  table_.OnLink(77, Endpoint());
  session_->EndWithFault(Error(ErrorCode::kStaleEpoch, "epoch 3"));
  session_->board().Flush();
  EXPECT_EQ(board_.fault(), ErrorCode::kStaleEpoch);
  EXPECT_EQ(board_.fault_text(), "epoch 3");
}

TEST_F(SessionTest, ALinkThatComesUpAfterTheFenceIsClosedBySweep) {
  ASSERT_TRUE(session_->SetClientRegions({Board()}, 1).ok());
  session_->EndFenced(Error(ErrorCode::kFenced, "replaced"));
  transport::LinkEvents* events = table_.OnLink(77, Endpoint());
  events->OnNotify(0);
  EXPECT_TRUE(sink_.slots.empty());
  EXPECT_EQ(board_.magic(), 0u) << "nothing is written to it";
  table_.Sweep();
}

TEST_F(SessionTest, ANewLinkReplacesTheOldOneWhichIsReaped) {
  ASSERT_TRUE(session_->SetClientRegions({Board()}, 1).ok());
  table_.OnLink(77, Endpoint());
  session_->OnDisconnect(Error(ErrorCode::kUnavailable, "reset"));
  table_.OnLink(77, Endpoint());
  EXPECT_EQ(session_->link_state(), Session::LinkState::kUp);
  session_->ReapLinks();
  session_->board().SetReleased(0, 3);
  session_->board().Flush();
  EXPECT_EQ(board_.released(0), 3u);
}

TEST_F(SessionTest, FetchedBytesAreThoseOfAllLinks) {
  ASSERT_TRUE(session_->SetClientRegions({Board()}, 1).ok());
  EXPECT_EQ(session_->fetched_bytes(), 0u);
  auto first = Endpoint();
  first->set_served_bytes(100);
  table_.OnLink(77, std::move(first));
  EXPECT_EQ(session_->fetched_bytes(), 100u);
  auto second = Endpoint();
  FakeEndpoint* raw = second.get();
  table_.OnLink(77, std::move(second));
  EXPECT_EQ(session_->fetched_bytes(), 100u);
  raw->set_served_bytes(11);
  EXPECT_EQ(session_->fetched_bytes(), 111u);
  session_->ReapLinks();
  session_->CloseLink();
  EXPECT_EQ(session_->fetched_bytes(), 111u);
}

// Bug: after its job was deleted a worker heard "fenced" with a list of what may have happened.
TEST_F(SessionTest, WhyASessionEndedIsToldAlsoAfterItWasErased) {
  session_->EndFenced(Error(ErrorCode::kStaleEpoch, "job gpt was deleted"));
  table_.Erase(77);
  EXPECT_EQ(CodeOf(table_.Find(77).status()), ErrorCode::kStaleEpoch);
  EXPECT_EQ(MessageOf(table_.Lookup(77).status()), "job gpt was deleted");
}

TEST_F(SessionTest, AnUnknownSessionIsFenced) {
  table_.Erase(77);
  table_.Erase(77);
  EXPECT_EQ(CodeOf(table_.Find(77).status()), ErrorCode::kFenced);
  EXPECT_EQ(CodeOf(table_.Lookup(0).status()), ErrorCode::kFenced);
}

TEST_F(SessionTest, SecretsDiffer) {
  SessionOptions options;
  options.id = 78;
  options.sink = &sink_;
  options.clock = &clock_;
  options.board = {5, kSlots, kShards};
  const Session other(std::move(options));
  EXPECT_NE(other.secret(), session_->secret());
}

}  // namespace
}  // namespace luwu
