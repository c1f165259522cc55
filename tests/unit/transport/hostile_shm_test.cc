// Peers that do not keep the protocol, on the shm socket; what a peer can do with the memory that
// it is shown; and notifications to a peer that does not read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "common/transport/handshake.h"
#include "common/transport/shm/region_exchange.h"
#include "common/transport/socket.h"
#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

const LinkKind kShmLink = {"shm", Kind::kShm, 1, false, {}};
constexpr uint32_t kNobody = 65534;

// A client made of a plain socket.
class RawShmClient {
 public:
  explicit RawShmClient(const Daemon& daemon) : daemon_(daemon) {
    auto fd = ConnectUnix(daemon.shm_path, Patience());
    EXPECT_TRUE(fd.ok());
    fd_ = *std::move(fd);
  }

  void ProveItself(uint64_t session_id) {
    Nonce nonce;
    ASSERT_TRUE(ReceiveExact(fd(), WritableBytesOf(nonce), Patience()).ok());
    Answer answer = {};
    answer.magic = kAnswerMagic;
    answer.kind = static_cast<uint32_t>(Kind::kShm);
    answer.session_id = session_id;
    answer.connections = 1;
    answer.mac = HandshakeMac(daemon_.secret, kRoleClient, nonce, answer);
    ASSERT_TRUE(SendExact(fd(), BytesOf(answer), Patience()).ok());
    Mac mac;
    ASSERT_TRUE(ReceiveExact(fd(), WritableBytesOf(mac), Patience()).ok());
  }
  // The daemon's memfds, in the order weights, inbox.
  std::vector<UniqueFd> ReceiveDescriptors() {
    RegionFrame frame;
    iovec piece = {&frame, sizeof frame};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kRegionsMax)];
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    EXPECT_TRUE(WaitReadable(fd(), Patience()).ok());
    EXPECT_EQ(::recvmsg(fd(), &message, MSG_CMSG_CLOEXEC), static_cast<ssize_t>(sizeof frame));
    std::vector<UniqueFd> fds;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    for (uint32_t i = 0; header != nullptr && i < frame.count; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(header) + i * sizeof raw, sizeof raw);
      fds.emplace_back(raw);
    }
    return fds;
  }
  void SendFrame(const RegionFrame& frame, const std::vector<int>& fds) {
    iovec piece = {const_cast<RegionFrame*>(&frame), sizeof frame};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    ASSERT_EQ(::sendmsg(fd(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof frame));
  }
  RegionFrame GoodFrame() const {
    RegionFrame frame = {kRegionFrameMagic, 2, {}};
    frame.entries[0] = {kBoard, static_cast<uint32_t>(Access::kRemoteWrite),
                        daemon_.board->bytes()};
    frame.entries[1] = {kOutbox, static_cast<uint32_t>(Access::kRemoteRead),
                        daemon_.outbox->bytes()};
    return frame;
  }
  std::vector<int> GoodFds() const { return {daemon_.board->fd(), daemon_.outbox->fd()}; }
  // What the daemon says to our regions.
  Status ReceiveVerdict() {
    Verdict verdict = {};
    const Status received = ReceiveExact(fd(), WritableBytesOf(verdict), Patience());
    return received.ok() ? ReadVerdict(verdict) : received;
  }
  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }

 private:
  const Daemon& daemon_;
  UniqueFd fd_;
};

class HostileShm : public ::testing::Test {
 protected:
  HostileShm() : good_(kShmLink, kMiB) { daemon().authority.Admit(2, daemon().Terms(1)); }
  Daemon& daemon() { return good_.daemon; }
  void ExpectGoodLinkWorks() {
    TestRequest request;
    const auto data = RandomBytes(5000, ++notified_);
    const ConstByteSpan source = data;
    good_.client->WriteWithNotify({&source, 1}, RemoteSpan(kInbox, 0, data.size()), 0,
                                  static_cast<uint32_t>(notified_), &request);
    EXPECT_TRUE(request.Result().ok());
    EXPECT_EQ(good_.server.events->WaitNotifies(notified_).size(), notified_);
    EXPECT_EQ(std::memcmp(daemon().inbox->span().data(), data.data(), data.size()), 0);
    EXPECT_EQ(good_.server.events->disconnects(), 0);
  }

  LinkPair good_;
  uint64_t notified_ = 0;
};

UniqueFd Memfd(uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST_F(HostileShm, RegionsThatDifferFromTheAgreedOnesAreRefusedWithTheReason) {
  struct Case {
    const char* reason;
    std::function<void(RegionFrame*, std::vector<int>*)> change;
  };
  const uint64_t board_bytes = daemon().board->bytes();
  const UniqueFd unsealed = Memfd(board_bytes, 0);
  const UniqueFd shrunk = Memfd(board_bytes - 4096, F_SEAL_SHRINK);
  const UniqueFd read_only = Memfd(board_bytes, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd pipe_read(pipes[0]);
  const UniqueFd pipe_write(pipes[1]);
  const Case cases[] = {
      {"malformed", [](RegionFrame* f, auto*) { f->magic ^= 1; }},
      {"malformed", [](RegionFrame* f, auto*) { f->count = UINT32_MAX; }},
      {"not agreed", [](RegionFrame* f, auto*) { f->entries[0].id = 9; }},
      {"not agreed", [](RegionFrame* f, auto*) { f->entries[0].bytes += 4096; }},
      {"not agreed", [](RegionFrame* f, auto*) { f->entries[0].access = 1; }},
      {"not agreed", [](RegionFrame* f, auto*) { f->entries[0].access = 77; }},
      {"not agreed", [](RegionFrame* f, auto*) { f->entries[1] = f->entries[0]; }},
      {"does not expose",
       [](RegionFrame* f, std::vector<int>* fds) {
         f->count = 1;
         fds->pop_back();
       }},
      {"descriptors", [](RegionFrame*, std::vector<int>* fds) { fds->pop_back(); }},
      {"descriptors", [](RegionFrame*, std::vector<int>* fds) { fds->clear(); }},
      {"descriptors", [](RegionFrame*, std::vector<int>* fds) { fds->push_back(fds->front()); }},
      {"not a sealable memfd",
       [&](RegionFrame*, std::vector<int>* fds) { fds->front() = pipe_read.get(); }},
      {"sealed against shrinking",
       [&](RegionFrame*, std::vector<int>* fds) { fds->front() = unsealed.get(); }},
      {"were announced", [&](RegionFrame*, std::vector<int>* fds) { fds->front() = shrunk.get(); }},
      {"mapping", [&](RegionFrame*, std::vector<int>* fds) { fds->front() = read_only.get(); }},
  };
  for (const Case& test : cases) {
    RawShmClient client(daemon());
    client.ProveItself(2);
    (void)client.ReceiveDescriptors();
    RegionFrame frame = client.GoodFrame();
    std::vector<int> fds = client.GoodFds();
    test.change(&frame, &fds);
    client.SendFrame(frame, fds);
    const Status verdict = client.ReceiveVerdict();
    EXPECT_NE(MessageOf(verdict).find(test.reason), std::string::npos) << ToString(verdict);
  }
  RawShmClient flood(daemon());
  flood.ProveItself(2);
  flood.SendFrame(flood.GoodFrame(), std::vector<int>(kRegionsMax + 10, daemon().board->fd()));
  (void)flood.ReceiveDescriptors();
  EXPECT_FALSE(flood.ReceiveVerdict().ok());
  ExpectGoodLinkWorks();
}

// Found by tests/fuzz/shm_attach: 258 was taken for 2.
TEST_F(HostileShm, AnAccessWithAGoodLowByteOnlyIsRefused) {
  RawShmClient client(daemon());
  client.ProveItself(2);
  (void)client.ReceiveDescriptors();
  RegionFrame frame = client.GoodFrame();
  frame.entries[0].access += 256;
  client.SendFrame(frame, client.GoodFds());
  const Status verdict = client.ReceiveVerdict();
  EXPECT_NE(MessageOf(verdict).find("not agreed"), std::string::npos) << ToString(verdict);
  ExpectGoodLinkWorks();
}

TEST_F(HostileShm, TheDialerChecksTheDaemonsRegionsLikewise) {
  TestEvents events;
  DialOptions options = daemon().Options(kShmLink, 2);
  options.expected[0].bytes += 4096;
  auto link = daemon().Dial(options, &events);
  ASSERT_FALSE(link.ok());
  EXPECT_NE(MessageOf(link.status()).find("region 1 of"), std::string::npos)
      << ToString(link.status());
  ExpectGoodLinkWorks();
}

TEST_F(HostileShm, AReadableRegionCannotBeWrittenByAnyMeans) {
  std::fill(daemon().weights->span().begin(), daemon().weights->span().end(), std::byte{7});
  RawShmClient client(daemon());
  client.ProveItself(2);
  const auto fds = client.ReceiveDescriptors();
  ASSERT_EQ(fds.size(), 2U);
  const int weights = fds[0].get();
  const size_t bytes = daemon().weights->bytes();
  EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, weights, 0), MAP_FAILED);
  void* read_only = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, weights, 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_NE(::mprotect(read_only, bytes, PROT_READ | PROT_WRITE), 0);
  ::munmap(read_only, bytes);
  const char byte = 1;
  EXPECT_EQ(::pwrite(weights, &byte, 1, 0), -1);
  EXPECT_EQ(::fallocate(weights, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(::ftruncate(weights, 0), -1);
  EXPECT_EQ(::ftruncate(fds[1].get(), 0), -1);
  EXPECT_EQ(::fcntl(fds[1].get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1) << "seals of its own";
  EXPECT_EQ(
      std::count(daemon().weights->span().begin(), daemon().weights->span().end(), std::byte{7}),
      static_cast<ptrdiff_t>(bytes));
}

TEST_F(HostileShm, RandomBytesAreSurvived) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    RawShmClient client(daemon());
    if (i % 3 == 0) {
      client.ProveItself(2);
      RegionFrame frame = client.GoodFrame();
      auto* raw = reinterpret_cast<uint8_t*>(&frame);
      for (int flips = 0; flips < 3; ++flips) raw[random() % 56] ^= static_cast<uint8_t>(random());
      client.SendFrame(frame, client.GoodFds());
    } else {
      (void)SendExact(client.fd(), RandomBytes(random() % 500, random()), Patience());
    }
  }
  ExpectGoodLinkWorks();
}

// A link of which the other end is a plain socket.
struct RawLink {
  explicit RawLink(Daemon& daemon) : client(daemon) {
    client.ProveItself(2);
    (void)client.ReceiveDescriptors();
    client.SendFrame(client.GoodFrame(), client.GoodFds());
    const Status verdict = client.ReceiveVerdict();
    EXPECT_TRUE(verdict.ok()) << ToString(verdict);
    server = daemon.authority.WaitLink(2);
  }
  ~RawLink() { server.endpoint.reset(); }
  RawShmClient client;
  TestAuthority::Linked server;
};

TEST_F(HostileShm, NotificationsBeyondTheSocketBufferArriveAllAndInOrder) {
  RawLink link(daemon());
  constexpr uint32_t kCount = 10'000;  // many times what the socket buffers
  std::deque<TestRequest> requests(kCount);
  for (uint32_t i = 0; i < kCount; ++i) link.server.endpoint->Notify(0, i, &requests[i]);
  for (TestRequest& request : requests) ASSERT_TRUE(request.Result().ok());
  std::vector<uint32_t> heard(kCount);
  ASSERT_TRUE(
      ReceiveExact(link.client.fd(), std::as_writable_bytes(std::span(heard)), Patience()).ok());
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(heard[i], i);
  ExpectGoodLinkWorks();
}

TEST_F(HostileShm, APeerThatNeverReadsItsNotificationsIsCutOff) {
  RawLink link(daemon());
  Status last = OkStatus();
  int posted = 0;
  for (; last.ok() && posted < 100'000; ++posted) {
    TestRequest request;
    link.server.endpoint->Notify(0, 1, &request);
    last = request.Result();
  }
  EXPECT_EQ(CodeOf(last), ErrorCode::kUnavailable) << posted;
  EXPECT_NE(MessageOf(link.server.events->WaitDisconnect()).find("unread"), std::string::npos);
  ExpectGoodLinkWorks();
}

TEST_F(HostileShm, AnImmediateMayArriveInPieces) {
  RawLink link(daemon());
  const uint32_t immediates[] = {0x01020304, 0xa0b0c0d0};
  const ConstByteSpan bytes = std::as_bytes(std::span(immediates));
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_TRUE(SendExact(link.client.fd(), bytes.subspan(i, 1), Patience()).ok());
    ExpectGoodLinkWorks();  // gives the daemon a turn
  }
  EXPECT_EQ(link.server.events->WaitNotifies(2), (std::vector<uint32_t>{0x01020304, 0xa0b0c0d0}));
}

// Dials as a user who is neither root nor the daemon's own.
StatusOr<std::unique_ptr<Endpoint>> DialAsNobody(Daemon& daemon, TestEvents* events) {
  StatusOr<std::unique_ptr<Endpoint>> link = Error(ErrorCode::kInternal, "not dialled");
  std::thread dialling([&] {  // gives up being root in this thread only
    ASSERT_EQ(::syscall(SYS_setresuid, -1, kNobody, -1), 0);
    link = daemon.Dial(daemon.Options(kShmLink, 3), events);
  });
  dialling.join();
  return link;
}

TEST_F(HostileShm, AProcessOfAnotherUserIsRefused) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  daemon().authority.Admit(3, daemon().Terms(1));
  TestEvents events;
  EXPECT_FALSE(DialAsNobody(daemon(), &events).ok()) << "although it knows the secret";
  EXPECT_TRUE(daemon().Dial(daemon().Options(kShmLink, 3), &events).ok()) << "root may";
  ExpectGoodLinkWorks();
}

TEST(ShmUsers, AUserOnTheListMayDialButNotWithoutTheSecret) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  Daemon daemon(4 * kMiB, {7, kNobody});
  daemon.authority.Admit(3, daemon.Terms(1));
  TestEvents events;
  EXPECT_TRUE(DialAsNobody(daemon, &events).ok());
  SessionTerms terms = daemon.Terms(1);
  terms.secret = RandomSecret();
  daemon.authority.Admit(3, terms);
  EXPECT_FALSE(DialAsNobody(daemon, &events).ok());
}

TEST(ShmSocket, AStaleFileIsReplacedAndALiveOneRefused) {
  const std::string path = FreshSocketPath();
  TestAuthority authority;
  auto first = MakeAcceptor({"", path, {}}, &authority);
  ASSERT_TRUE(first.ok());
  const auto second = MakeAcceptor({"", path, {}}, &authority);
  EXPECT_EQ(CodeOf(second.status()), ErrorCode::kAlreadyExists);
  EXPECT_NE(MessageOf(second.status()).find(path), std::string::npos);
  first->reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "a clean end leaves no file";
  {
    const auto abandoned = ListenUnix(path);  // as a killed daemon leaves it
    ASSERT_TRUE(abandoned.ok());
  }
  ASSERT_EQ(::access(path.c_str(), F_OK), 0);
  EXPECT_TRUE(MakeAcceptor({"", path, {}}, &authority).ok());
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(CodeOf(MakeAcceptor({"", path, {}}, &authority).status()), ErrorCode::kAlreadyExists);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace luwu::transport
