// Peers that do not keep the protocol, on the tcp port. After each of them the daemon must be alive
// and its other links untouched.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "common/transport/handshake.h"
#include "common/transport/socket.h"
#include "common/transport/tcp/frame.h"
#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

const LinkKind kTcp1 = {"tcp1", Kind::kTcp, 1, false, {}};

// A client made of a plain socket.
class RawClient {
 public:
  explicit RawClient(const Daemon& daemon) : daemon_(daemon) {
    auto fd = ConnectTcp(fmt::format("127.0.0.1:{}", daemon.acceptor->tcp_port()), Patience());
    EXPECT_TRUE(fd.ok());
    fd_ = *std::move(fd);
  }

  // Fills the MAC and sends.
  void SendAnswer(Answer answer, const Secret& secret) {
    Nonce nonce;
    ASSERT_TRUE(ReceiveExact(fd_.get(), WritableBytesOf(nonce), Patience()).ok());
    answer.mac = HandshakeMac(secret, kRoleClient, nonce, answer);
    (void)SendExact(fd_.get(), BytesOf(answer), Patience());
  }
  static Answer GoodAnswer(uint64_t session_id = 1) {
    Answer answer = {};
    answer.magic = kAnswerMagic;
    answer.kind = static_cast<uint32_t>(Kind::kTcp);
    answer.session_id = session_id;
    answer.link_id = RandomU64();
    answer.connections = 1;
    answer.nonce = RandomNonce();
    return answer;
  }
  void Enter(uint64_t session_id = 1) {
    SendAnswer(GoodAnswer(session_id), daemon_.secret);
    Mac mac;
    ASSERT_TRUE(ReceiveExact(fd_.get(), WritableBytesOf(mac), Patience()).ok());
  }

  void Send(ConstByteSpan bytes) { (void)SendExact(fd_.get(), bytes, Patience()); }
  // Everything the daemon says until it closes; nothing when it does not close.
  std::optional<std::vector<std::byte>> ReceiveUntilClosed() {
    std::vector<std::byte> all;
    std::array<std::byte, 65536> buffer;
    while (WaitReadable(fd_.get(), Patience()).ok()) {
      const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (count <= 0) return all;
      all.insert(all.end(), buffer.begin(), buffer.begin() + count);
    }
    return std::nullopt;
  }
  int fd() const { return fd_.get(); }

 private:
  const Daemon& daemon_;
  UniqueFd fd_;
};

FrameHeader Frame(Op op, uint64_t id = 1) {
  FrameHeader header = {};
  header.magic = kFrameMagic;
  header.op = static_cast<uint8_t>(op);
  header.flags = kFlagLast;
  header.id = id;
  return header;
}

FrameHeader Target(FrameHeader header, RegionId region, uint64_t offset, uint64_t bytes) {
  header.region = region;
  header.offset = offset;
  header.bytes = bytes;
  return header;
}

class HostileTcp : public ::testing::Test {
 protected:
  HostileTcp() : good_(kTcp1, kMiB) { daemon().authority.Admit(2, daemon().Terms(1)); }
  Daemon& daemon() { return good_.daemon; }
  void ExpectGoodLinkWorks() {
    const auto data = RandomBytes(5000, ++seed_);
    EXPECT_TRUE(WriteNow(*good_.client, data, RemoteSpan(kInbox, 0, data.size())).ok());
    EXPECT_EQ(std::memcmp(daemon().inbox->span().data(), data.data(), data.size()), 0);
    EXPECT_EQ(good_.server.events->disconnects(), 0);
    EXPECT_EQ(good_.client_events.disconnects(), 0);
  }

  LinkPair good_;
  uint64_t seed_ = 0;
};

TEST_F(HostileTcp, HandshakesWithWrongFieldsAreClosedWithoutAWord) {
  struct Case {
    const char* what;
    std::function<void(Answer*)> change;
  };
  const Case cases[] = {
      {"magic", [](Answer* a) { a->magic ^= 1; }},
      {"kind", [](Answer* a) { a->kind = static_cast<uint32_t>(Kind::kShm); }},
      {"unknown session", [](Answer* a) { a->session_id = 77; }},
      {"too many connections", [](Answer* a) { a->connections = 2; }},
      {"no connections", [](Answer* a) { a->connections = 0; }},
      {"connection number", [](Answer* a) { a->connection = 1; }},
      {"huge connection number", [](Answer* a) { a->connection = UINT32_MAX; }},
  };
  for (const Case& test : cases) {
    RawClient client(daemon());
    Answer answer = RawClient::GoodAnswer(2);
    test.change(&answer);
    client.SendAnswer(answer, daemon().secret);
    const auto heard = client.ReceiveUntilClosed();
    ASSERT_TRUE(heard.has_value()) << test.what;
    EXPECT_TRUE(heard->empty()) << test.what;
  }
  RawClient client(daemon());
  client.SendAnswer(RawClient::GoodAnswer(2), RandomSecret());
  const auto heard = client.ReceiveUntilClosed();
  ASSERT_TRUE(heard.has_value());
  EXPECT_TRUE(heard->empty()) << "a wrong MAC";
  ExpectGoodLinkWorks();
}

TEST_F(HostileTcp, TheSameConnectionTwiceIsRefused) {
  daemon().authority.Admit(3, daemon().Terms(2));
  RawClient first(daemon());
  RawClient second(daemon());
  Answer answer = RawClient::GoodAnswer(3);
  answer.connections = 2;
  first.SendAnswer(answer, daemon().secret);
  Mac mac;
  ASSERT_TRUE(ReceiveExact(first.fd(), WritableBytesOf(mac), Patience()).ok());
  second.SendAnswer(answer, daemon().secret);
  EXPECT_TRUE(second.ReceiveUntilClosed().has_value());
  ExpectGoodLinkWorks();
}

TEST_F(HostileTcp, AStalledHandshakeIsClosed) {
  RawClient silent(daemon());
  RawClient halfway(daemon());
  const Answer answer = RawClient::GoodAnswer(2);
  halfway.Send(BytesOf(answer).first(50));
  daemon().authority.Admit(3, daemon().Terms(2));
  RawClient alone(daemon());  // its second connection never comes
  Answer one_of_two = RawClient::GoodAnswer(3);
  one_of_two.connections = 2;
  alone.SendAnswer(one_of_two, daemon().secret);
  EXPECT_TRUE(silent.ReceiveUntilClosed().has_value());
  EXPECT_TRUE(halfway.ReceiveUntilClosed().has_value());
  EXPECT_TRUE(alone.ReceiveUntilClosed().has_value());
  ExpectGoodLinkWorks();
}

TEST_F(HostileTcp, FramesThatBreakTheProtocolEndTheirLinkWithTheReason) {
  const uint64_t size = daemon().inbox->bytes();
  FrameHeader wrong_magic = Frame(Op::kNotify);
  wrong_magic.magic = 0;
  FrameHeader reserved = Frame(Op::kNotify);
  reserved.reserved = 1;
  struct Case {
    const char* reason;
    FrameHeader header;
  };
  const Case cases[] = {
      {"magic", wrong_magic},
      {"reserved", reserved},
      {"unknown operation", Frame(static_cast<Op>(0))},
      {"unknown operation", Frame(static_cast<Op>(255))},
      {"outside", Target(Frame(Op::kWrite), kInbox, size, 1)},
      {"outside", Target(Frame(Op::kWrite), kInbox, size - 4, 8)},
      {"outside", Target(Frame(Op::kWrite), kInbox, UINT64_MAX - 3, 8)},
      {"too long", Target(Frame(Op::kWrite), kInbox, 0, kPieceBytesMax + 1)},
      {"too long", Target(Frame(Op::kWrite), kInbox, 8, UINT64_MAX - 7)},
      {"may not be written", Target(Frame(Op::kWrite), kWeights, 0, 8)},
      {"no such region", Target(Frame(Op::kWrite), kBoard, 0, 8)},
      {"out of sequence", Target(Frame(Op::kWrite, 2), kInbox, 0, 8)},
      {"outside", Target(Frame(Op::kRead), kWeights, size - 4, 8)},
      {"outside", Target(Frame(Op::kRead), kWeights, UINT64_MAX, UINT64_MAX)},
      {"may not be read", Target(Frame(Op::kRead), kInbox, 0, 8)},
      {"no such region", Target(Frame(Op::kRead), 1000, 0, 8)},
      {"out of sequence", Target(Frame(Op::kRead, 7), kWeights, 0, 8)},
      {"not outstanding", Target(Frame(Op::kReadReply), 0, 0, 8)},
      {"not outstanding", Frame(Op::kAck)},
      {"not outstanding", Frame(Op::kAck, 0)},
      {"no payload", Target(Frame(Op::kAck), 0, 0, 1)},
      {"bad notify", Frame(Op::kNotify, 9)},
      {"bad notify", Target(Frame(Op::kNotify), 0, 0, 1)},
      {"error text", Target(Frame(Op::kError), 0, 0, kErrorTextMax + 1)},
  };
  std::fill(daemon().inbox->span().begin(), daemon().inbox->span().end(), std::byte{0});
  for (const Case& test : cases) {
    RawClient client(daemon());
    client.Enter(2);
    auto server = daemon().authority.WaitLink(2);
    ASSERT_NE(server.endpoint, nullptr);
    std::vector<std::byte> message(sizeof test.header + 64, std::byte{0xff});
    std::memcpy(message.data(), &test.header, sizeof test.header);
    client.Send(message);
    const Status why = server.events->WaitDisconnect();
    EXPECT_NE(MessageOf(why).find(test.reason), std::string::npos) << ToString(why);
    const auto heard = client.ReceiveUntilClosed();
    ASSERT_TRUE(heard.has_value());
    const std::string text(reinterpret_cast<const char*>(heard->data()), heard->size());
    EXPECT_NE(text.find(test.reason), std::string::npos) << "the peer is told: " << test.reason;
  }
  const ByteSpan inbox = daemon().inbox->span();
  EXPECT_EQ(std::count(inbox.begin(), inbox.end(), std::byte{0}),
            static_cast<ptrdiff_t>(inbox.size()));
  ExpectGoodLinkWorks();
}

TEST_F(HostileTcp, APeersLastWordsReachTheOwner) {
  RawClient client(daemon());
  client.Enter(2);
  auto server = daemon().authority.WaitLink(2);
  const std::string text = "gone\nfishing";
  const FrameHeader header = Target(Frame(Op::kError), 0, 0, text.size());
  client.Send(BytesOf(header));
  client.Send(std::as_bytes(std::span(text)));
  const Status why = server.events->WaitDisconnect();
  EXPECT_NE(MessageOf(why).find("gone?fishing"), std::string::npos) << ToString(why);
}

// The bytes of a message may come one at a time; a small write appears as a whole all the same.
TEST_F(HostileTcp, MessagesMayArriveByteByByte) {
  RawClient client(daemon());
  client.Enter(2);
  auto server = daemon().authority.WaitLink(2);
  constexpr uint64_t kOffset = 100'000;
  auto* word = reinterpret_cast<uint64_t*>(daemon().inbox->span().data() + kOffset);
  FrameHeader header = Target(Frame(Op::kWrite), kInbox, kOffset, 8);
  header.flags |= kFlagNotify;
  header.immediate = 123;
  std::vector<std::byte> message(sizeof header + 8, std::byte{0xab});
  std::memcpy(message.data(), &header, sizeof header);
  for (size_t i = 0; i < message.size(); ++i) {
    ASSERT_EQ(std::atomic_ref<uint64_t>(*word).load(), 0U) << "after " << i << " bytes";
    client.Send(ConstByteSpan(message).subspan(i, 1));
    ExpectGoodLinkWorks();  // gives the daemon a turn; it writes to its own part
  }
  EXPECT_EQ(server.events->WaitNotifies(1), std::vector<uint32_t>{123});
  EXPECT_EQ(std::atomic_ref<uint64_t>(*word).load(), 0xababababababababULL);
}

TEST_F(HostileTcp, AReaderThatNeverDrainsIsCutOff) {
  RawClient client(daemon());
  client.Enter(2);
  auto server = daemon().authority.WaitLink(2);
  std::vector<FrameHeader> reads;
  for (uint64_t id = 1; id <= kReadsInFlightMax + 20; ++id) {
    reads.push_back(Target(Frame(Op::kRead, id), kWeights, 0, daemon().weights->bytes()));
  }
  client.Send(std::as_bytes(std::span(reads)));
  const Status why = server.events->WaitDisconnect();
  EXPECT_NE(MessageOf(why).find("reads outstanding"), std::string::npos) << ToString(why);
  ExpectGoodLinkWorks();
}

TEST_F(HostileTcp, RandomBytesAndMutilatedFramesAreSurvived) {
  std::mt19937_64 random(99);
  for (int i = 0; i < 3000; ++i) {
    RawClient client(daemon());
    if (i % 2 == 0) {
      client.Send(RandomBytes(random() % 300, random()));
      continue;
    }
    client.Enter(2);
    std::vector<std::byte> stream;
    uint64_t write_id = 1;
    uint64_t read_id = 1;
    for (int frame = 0; frame < 8; ++frame) {
      const auto op = static_cast<Op>(1 + random() % 6);
      const uint64_t bytes = random() % 100;
      FrameHeader header =
          Target(Frame(op, op == Op::kRead ? read_id++ : write_id),
                 op == Op::kRead ? kWeights : kInbox, 8192 + random() % 9000, bytes);
      if (op == Op::kWrite || op == Op::kNotify) ++write_id;
      if (op == Op::kNotify) header.bytes = 0;
      auto* raw = reinterpret_cast<uint8_t*>(&header);
      if (random() % 3 == 0) raw[random() % sizeof header] ^= static_cast<uint8_t>(random());
      const ConstByteSpan head = BytesOf(header);
      stream.insert(stream.end(), head.begin(), head.end());
      if (op != Op::kRead && op != Op::kNotify) {
        const auto payload = RandomBytes(bytes, random());
        stream.insert(stream.end(), payload.begin(), payload.end());
      }
    }
    client.Send(stream);
    auto server = daemon().authority.WaitLink(2);
    ASSERT_NE(server.endpoint, nullptr);
    server.endpoint.reset();
    if (i % 500 == 1) ExpectGoodLinkWorks();
  }
  ExpectGoodLinkWorks();
}

// ---- a daemon that cheats
// ------------------------------------------------------------------------

class FakeDaemon {
 public:
  FakeDaemon() : listener_(*ListenTcp("127.0.0.1:0")) {}
  std::string address() const { return fmt::format("127.0.0.1:{}", listener_.port); }

  // Accepts one connection and plays the daemon's part.
  void Accept(const Secret& secret) {
    ASSERT_TRUE(WaitReadable(listener_.fd.get(), Patience()).ok());
    fd_ = UniqueFd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const Nonce nonce = RandomNonce();
    Answer answer;
    ASSERT_TRUE(SendExact(fd_.get(), nonce, Patience()).ok());
    ASSERT_TRUE(ReceiveExact(fd_.get(), WritableBytesOf(answer), Patience()).ok());
    const Mac mac = HandshakeMac(secret, kRoleDaemon, nonce, answer);
    ASSERT_TRUE(SendExact(fd_.get(), mac, Patience()).ok());
  }
  void Send(ConstByteSpan bytes) { (void)SendExact(fd_.get(), bytes, Patience()); }
  FrameHeader ReceiveHeader() {
    FrameHeader header = {};
    EXPECT_TRUE(ReceiveExact(fd_.get(), WritableBytesOf(header), Patience()).ok());
    return header;
  }
  void Close() { fd_.Reset(); }

 private:
  TcpListener listener_;
  UniqueFd fd_;
};

class CheatingDaemon : public ::testing::Test {
 protected:
  StatusOr<std::unique_ptr<Endpoint>> Dial(const Secret& daemons_secret) {
    DialOptions options = shape_.Options(kTcp1);
    options.address = fake_.address();
    std::thread accepting([&] { fake_.Accept(daemons_secret); });
    auto link = shape_.Dial(options, &events_);
    accepting.join();
    return link;
  }

  Daemon shape_;
  FakeDaemon fake_;
  TestEvents events_;
};

TEST_F(CheatingDaemon, OneThatDoesNotKnowTheSecretIsRefused) {
  auto link = Dial(RandomSecret());
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(CodeOf(link.status()), ErrorCode::kPermission) << ToString(link.status());
}

TEST_F(CheatingDaemon, RequestsThatItNeverAnswersCompleteWhenItGoes) {
  auto link = Dial(shape_.secret);
  ASSERT_TRUE(link.ok());
  std::vector<std::byte> target(5000);
  const auto data = RandomBytes(3 * kMiB, 1);
  const ConstByteSpan source = data;
  std::deque<TestRequest> requests;
  for (int i = 0; i < 700; ++i) {  // more than may be in flight, and more than the socket holds
    if (i % 2 == 0) {
      (*link)->Read(RemoteSpan(kWeights, 0, target.size()), target, 0, &requests.emplace_back());
    } else {
      (*link)->Write({&source, 1}, RemoteSpan(kInbox, 0, data.size()), 0, &requests.emplace_back());
    }
  }
  fake_.Close();
  EXPECT_EQ(CodeOf(events_.WaitDisconnect()), ErrorCode::kUnavailable);
  for (TestRequest& request : requests) {
    EXPECT_EQ(CodeOf(request.Result()), ErrorCode::kUnavailable);
    EXPECT_EQ(request.completions(), 1);
  }
}

TEST_F(CheatingDaemon, AnAcknowledgementOfBytesThatWereNotSentIsAViolation) {
  auto link = Dial(shape_.secret);
  ASSERT_TRUE(link.ok());
  const auto data = RandomBytes(4 * kMiB, 1);
  const ConstByteSpan source = data;
  TestRequest request;
  (*link)->Write({&source, 1}, RemoteSpan(kInbox, 0, data.size()), 0, &request);
  (void)fake_.ReceiveHeader();
  const FrameHeader ack = Frame(Op::kAck, 1);  // far more than the socket buffers is missing
  fake_.Send(BytesOf(ack));
  EXPECT_NE(MessageOf(events_.WaitDisconnect()).find("not outstanding"), std::string::npos);
  EXPECT_EQ(CodeOf(request.Result()), ErrorCode::kUnavailable);
}

TEST_F(CheatingDaemon, RepliesThatDoNotFitTheirReadAreViolations) {
  const FrameHeader good = Target(Frame(Op::kReadReply), 0, 0, 100);
  FrameHeader not_last = good;
  not_last.flags = 0;
  FrameHeader early_last = good;
  early_last.bytes = 50;
  FrameHeader wrong_id = good;
  wrong_id.id = 2;
  for (const FrameHeader& reply : {Target(good, 0, 0, 101), Target(good, 0, 8, 92), not_last,
                                   early_last, wrong_id, Target(good, 0, 0, UINT64_MAX)}) {
    FakeDaemon fresh;
    std::swap(fake_, fresh);
    TestEvents events;
    DialOptions options = shape_.Options(kTcp1);
    options.address = fake_.address();
    std::thread accepting([&] { fake_.Accept(shape_.secret); });
    auto link = shape_.Dial(options, &events);
    accepting.join();
    ASSERT_TRUE(link.ok());
    std::vector<std::byte> target(102, std::byte{0});
    TestRequest request;
    (*link)->Read(RemoteSpan(kWeights, 0, 100), ByteSpan(target).first(100), 0, &request);
    (void)fake_.ReceiveHeader();
    fake_.Send(BytesOf(reply));
    fake_.Send(std::vector<std::byte>(200, std::byte{0xff}));
    EXPECT_FALSE(events.WaitDisconnect().ok());
    EXPECT_EQ(CodeOf(request.Result()), ErrorCode::kUnavailable);
    EXPECT_EQ(target.back(), std::byte{0});
    link->reset();
  }
}

}  // namespace
}  // namespace luwu::transport
