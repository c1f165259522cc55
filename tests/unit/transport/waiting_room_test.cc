// Who gives way to whom, with connections that are nothing but their identity.
#include "common/transport/waiting_room.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>

#include "common/transport/pending_connection.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr size_t kAll = WaitingRoom::kWaitingMax;
constexpr size_t kOfPeer = WaitingRoom::kWaitingOfPeerMax;

class WaitingRoomTest : public ::testing::Test {
 protected:
  PendingConnection* New() {
    return &connections_.emplace_back(nullptr, loop_.get(), Kind::kTcp, UniqueFd());
  }
  // Enters `count` of one peer, none of which may push another out.
  std::deque<PendingConnection*> Fill(const std::string& peer, size_t count) {
    std::deque<PendingConnection*> in;
    for (size_t i = 0; i < count; ++i) {
      in.push_back(New());
      EXPECT_EQ(room_.Enter(in.back(), peer), nullptr) << i;
    }
    return in;
  }

  std::shared_ptr<EventLoop> loop_ = *EventLoop::Start("test");
  std::deque<PendingConnection> connections_;
  WaitingRoom room_;
};

TEST_F(WaitingRoomTest, OneTooManyOfAPeerPushesOutThatPeersOldest) {
  const auto others = Fill("b", 3);
  const auto own = Fill("a", kOfPeer);
  EXPECT_EQ(room_.Enter(New(), "a"), own[0]);
  EXPECT_EQ(room_.Enter(New(), "a"), own[1]);
  EXPECT_EQ(room_.size(), kOfPeer + 3);
}

TEST_F(WaitingRoomTest, WhoHasLeftMakesRoomAndIsNotPushedOut) {
  const auto own = Fill("a", kOfPeer);
  room_.Leave(own[0]);
  room_.Leave(own[0]);
  EXPECT_EQ(room_.Enter(New(), "a"), nullptr);
  EXPECT_EQ(room_.Enter(New(), "a"), own[1]);
}

TEST_F(WaitingRoomTest, WhenAllSeatsAreTakenThePeerWithMostGivesWay) {
  const auto few = Fill("few", 5);
  const size_t rest = kAll - 5 - kOfPeer;
  for (size_t i = 0; i < rest; ++i) (void)Fill("p" + std::to_string(i % 7), 1);
  const auto many = Fill("many", kOfPeer);
  ASSERT_EQ(room_.size(), kAll);
  EXPECT_EQ(room_.Enter(New(), "newcomer"), many[0]);
  EXPECT_EQ(room_.Enter(New(), "few"), many[1]);
  EXPECT_EQ(room_.size(), kAll);
}

TEST_F(WaitingRoomTest, NobodyIsLeftAfterClear) {
  (void)Fill("a", kOfPeer);
  room_.Clear();
  EXPECT_EQ(room_.size(), 0U);
  (void)Fill("a", kOfPeer);
}

// The peer of a connection to a listener on `listen` that comes from there as well.
std::string NameOfLoopback(const std::string& listen) {
  auto listener = ListenTcp(listen + ":0");
  if (!listener.ok()) return "";
  const auto client =
      ConnectTcp(fmt::format("{}:{}", listen, listener->port), DeadlineAfter(60'000));
  EXPECT_TRUE(client.ok());
  EXPECT_TRUE(WaitReadable(listener->fd.get(), DeadlineAfter(60'000)).ok());
  const UniqueFd accepted(::accept(listener->fd.get(), nullptr, nullptr));
  return PeerName(accepted.get());
}

TEST(PeerName, IsTheAddressThePrefixOrTheUser) {
  EXPECT_EQ(NameOfLoopback("127.0.0.1"), "127.0.0.1");
  const std::string v6 = NameOfLoopback("[::1]");  // empty on a host without IPv6
  EXPECT_TRUE(v6.empty() || v6 == "::/64") << v6;
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd one(pair[0]);
  const UniqueFd other(pair[1]);
  EXPECT_EQ(PeerName(one.get()), fmt::format("uid {}", ::geteuid()));
  EXPECT_EQ(PeerName(-1), "gone");
}

}  // namespace
}  // namespace luwu::transport
