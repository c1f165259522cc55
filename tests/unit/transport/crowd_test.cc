// Many connections that say nothing, or half of what they must: they are bounded, they keep nobody
// out, and one session cannot hold more than its own share.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>

#include "common/transport/handshake.h"
#include "common/transport/socket.h"
#include "common/transport/waiting_room.h"
#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

constexpr int kCrowd = 1500;  // more than may wait

const LinkKind kTcp1 = {"tcp1", Kind::kTcp, 1, false, {}};
const LinkKind kShm1 = {"shm", Kind::kShm, 1, false, {}};

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

// From an address of this host's loopback network.
UniqueFd Connect(const Daemon& daemon, const char* from) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, from, &address.sin_addr);
  const auto generic = [&] { return static_cast<sockaddr*>(static_cast<void*>(&address)); };
  EXPECT_EQ(::bind(fd.get(), generic(), sizeof address), 0);
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(daemon.acceptor->tcp_port());
  EXPECT_EQ(::connect(fd.get(), generic(), sizeof address), 0);
  return fd;
}

class Crowd : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit limit = {};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 4096) GTEST_SKIP() << "needs 4096 descriptors";
    limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 4096);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    daemon_.authority.Admit(1, daemon_.Terms(1));
    daemon_.authority.Admit(2, daemon_.Terms(2));
  }
  void ExpectALinkComesUp(const LinkKind& kind) {
    TestEvents events;
    const auto link = daemon_.Dial(daemon_.Options(kind), &events);
    EXPECT_TRUE(link.ok()) << ToString(link.status());
    auto server = daemon_.authority.WaitLink(1);
    EXPECT_NE(server.endpoint, nullptr);
  }
  // Answers the nonce that is waiting in the socket; whether the daemon's MAC came.
  bool Prove(const UniqueFd& fd, Answer answer) {
    Nonce nonce;
    if (!ReceiveExact(fd.get(), WritableBytesOf(nonce), Patience()).ok()) return false;
    answer.magic = kAnswerMagic;
    answer.mac = HandshakeMac(daemon_.secret, kRoleClient, nonce, answer);
    Mac mac;
    return SendExact(fd.get(), BytesOf(answer), Patience()).ok() &&
           ReceiveExact(fd.get(), WritableBytesOf(mac), Patience()).ok();
  }

  Daemon daemon_;
};

TEST_F(Crowd, AFloodOfOneAddressKeepsNobodyOut) {
  const size_t before = OpenDescriptors();
  std::vector<UniqueFd> flood;
  for (int i = 0; i < kCrowd; ++i) flood.push_back(Connect(daemon_, "127.0.0.1"));
  ExpectALinkComesUp(kTcp1);  // from the same address, after all of them
  // Both ends are in this process.
  EXPECT_LE(OpenDescriptors(), before + kCrowd + WaitingRoom::kWaitingOfPeerMax + 20);
}

TEST_F(Crowd, AFloodPushesOutNobodyOfAnotherAddress) {
  const UniqueFd early = Connect(daemon_, "127.0.0.2");
  std::vector<UniqueFd> flood;
  for (size_t i = 0; i < WaitingRoom::kWaitingOfPeerMax + 50; ++i) {
    flood.push_back(Connect(daemon_, "127.0.0.1"));
  }
  Answer answer = {};
  answer.kind = static_cast<uint32_t>(Kind::kTcp);
  answer.session_id = 1;
  answer.connections = 1;
  EXPECT_TRUE(Prove(early, answer)) << "it came first, and is still there";
}

TEST_F(Crowd, AFloodOfManyAddressesKeepsNobodyOut) {
  const size_t before = OpenDescriptors();
  std::vector<UniqueFd> flood;
  for (int i = 0; i < kCrowd; ++i) {
    flood.push_back(Connect(daemon_, fmt::format("127.0.1.{}", 1 + i % 10).c_str()));
  }
  ExpectALinkComesUp(kTcp1);
  EXPECT_LE(OpenDescriptors(), before + kCrowd + WaitingRoom::kWaitingMax + 20);
}

TEST_F(Crowd, AFloodAtTheSocketOfThisHostKeepsNobodyOut) {
  std::vector<UniqueFd> flood;
  for (int i = 0; i < kCrowd; ++i) {
    StatusOr<UniqueFd> fd = ConnectUnix(daemon_.shm_path, Patience());
    // The backlog is full until the daemon has taken some out of it.
    while (!fd.ok()) fd = ConnectUnix(daemon_.shm_path, Patience());
    flood.push_back(*std::move(fd));
  }
  ExpectALinkComesUp(kShm1);
}

// Found by reading: whoever knew a session's secret could hold as many handshakes as it liked.
TEST_F(Crowd, ASessionHoldsHandshakesForFourLinksOnly) {
  Answer answer = {};
  answer.kind = static_cast<uint32_t>(Kind::kTcp);
  answer.session_id = 2;
  answer.connections = 2;
  std::vector<UniqueFd> held;
  for (uint64_t i = 0; i < 8; ++i) {
    answer.link_id = i;
    held.push_back(Connect(daemon_, "127.0.0.1"));
    ASSERT_TRUE(Prove(held.back(), answer)) << i;
  }
  answer.link_id = 8;
  EXPECT_FALSE(Prove(Connect(daemon_, "127.0.0.1"), answer));
  ExpectALinkComesUp(kTcp1);  // of another session
}

}  // namespace
}  // namespace luwu::transport
