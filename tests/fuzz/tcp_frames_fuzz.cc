// What a peer sends on an authenticated tcp connection, in pieces whose size the first byte says.
// Compared with a second reading of the same bytes (Replay), which knows sockets and buffers from
// nowhere: the same bytes in the inbox, the same notifications, the same opinion whether the link
// goes on; and nothing else is touched.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/transport/store_bytes.h"
#include "common/transport/tcp/connection.h"

namespace luwu::transport {
namespace {

constexpr RegionId kWeights = 1;
constexpr RegionId kInbox = 2;
constexpr uint64_t kRegionBytes = 8192;
constexpr size_t kInputMax = 32 * 1024;
// Below what may be outstanding, which depends on how fast the peer takes replies.
constexpr uint64_t kReadsMax = kReadsInFlightMax / 2;

// Of one stream, as far as it can be said without knowing what we had posted.
struct Replayed {
  std::vector<std::byte> inbox = std::vector<std::byte>(kRegionBytes);
  std::vector<uint32_t> notified;
  bool ended = false;  // by a violation, or by the peer's own word
  bool known = true;   // false: it answers requests of ours
};

bool MayWrite(const FrameHeader& header, uint64_t write_id) {
  return header.bytes <= kPieceBytesMax && header.id == write_id && header.region == kInbox &&
         RangeFits(header.offset, header.bytes, kRegionBytes);
}

// One frame at the front of `rest`; false when the stream ends in it or at it.
bool ReplayFrame(ConstByteSpan& rest, uint64_t& write_id, uint64_t& read_id, Replayed& out) {
  FrameHeader header;
  if (rest.size() < sizeof header) return false;
  std::memcpy(&header, rest.data(), sizeof header);
  const ConstByteSpan behind = rest.subspan(sizeof header);
  const auto op = static_cast<Op>(header.op);
  uint64_t payload = 0;
  bool good = header.magic == kFrameMagic && header.reserved == 0;
  if (good && (op == Op::kReadReply || op == Op::kAck)) out.known = false;
  if (!good || !out.known) {
    out.ended = !good;
    return false;
  }
  if (op == Op::kWrite) {
    good = MayWrite(header, write_id);
    payload = good ? header.bytes : 0;
  } else if (op == Op::kNotify) {
    good = header.bytes == 0 && header.id == write_id;
  } else if (op == Op::kRead) {
    good = header.id == read_id++ && header.region == kWeights &&
           RangeFits(header.offset, header.bytes, kRegionBytes);
    if (read_id > kReadsMax) out.known = false;
  } else {  // the peer's last words, or no operation: the link ends, once the words are whole
    const bool words = op == Op::kError && header.bytes <= kErrorTextMax;
    out.ended = !words || behind.size() >= header.bytes;
    return false;
  }
  if (!good) {
    out.ended = true;
    return false;
  }
  const uint64_t take = std::min<uint64_t>(behind.size(), payload);
  const bool whole = take == payload;
  // Small writes appear at once or not at all.
  if (take > 0 && (whole || payload > kWordwiseBytesMax)) {
    std::memcpy(out.inbox.data() + header.offset, behind.data(), take);
  }
  if (!whole) return false;
  rest = behind.subspan(take);
  const bool last = op == Op::kNotify || (op == Op::kWrite && (header.flags & kFlagLast) != 0);
  if (last) ++write_id;
  if (op == Op::kNotify || (last && (header.flags & kFlagNotify) != 0)) {
    out.notified.push_back(header.immediate);
  }
  return true;
}

class Owner final : public ConnectionOwner {
 public:
  const LocalRegion* FindExposed(RegionId region) const override {
    return region == kWeights ? weights.get() : region == kInbox ? inbox.get() : nullptr;
  }
  void OnNotify(uint32_t immediate) override { notified.push_back(immediate); }
  void OnDone(RequestList* done) override { done->CompleteAll(); }
  void OnBroken(const Status& why) override {
    LUWU_CHECK(!why.ok() && !broken, "a link breaks once, with a reason");
    broken = true;
  }

  const std::shared_ptr<LocalRegion> weights =
      *LocalRegion::Create("weights", kRegionBytes, Access::kRemoteRead);
  const std::shared_ptr<LocalRegion> inbox =
      *LocalRegion::Create("inbox", kRegionBytes, Access::kRemoteWrite);
  std::vector<uint32_t> notified;
  bool broken = false;
};

class CountingRequest final : public Request {
 public:
  void Complete(const Status& /*status*/) override { ++completions; }
  int completions = 0;
};

// A read and a write of ours are under way, so that their answers can come.
struct Posted {
  explicit Posted(TcpConnection* connection) {
    PostedOp op;
    op.op = Op::kRead;
    op.remote = RemoteSpan(kWeights, 0, target.size() - 2);
    op.target = target.data() + 1;
    LUWU_CHECK(connection->Post(op, &read).ok(), "there is room");
    PostedOp notify;
    notify.op = Op::kNotify;
    LUWU_CHECK(connection->Post(notify, &write).ok(), "there is room");
  }
  std::array<std::byte, 66> target = {};
  CountingRequest read, write;
};

// Reads away what the connection says.
void Drain(int fd) {
  std::array<std::byte, 65536> heard;
  while (::recv(fd, heard.data(), heard.size(), MSG_DONTWAIT) > 0) {
  }
}

void Feed(TcpConnection& connection, Owner& owner, int peer, ConstByteSpan bytes, size_t piece) {
  while (!bytes.empty() && !owner.broken) {
    const ConstByteSpan part = bytes.first(std::min(piece, bytes.size()));
    const ssize_t sent = ::send(peer, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    LUWU_CHECK(sent == static_cast<ssize_t>(part.size()), "the socket takes a piece");
    bytes = bytes.subspan(part.size());
    bool again = connection.OnReady(EPOLLIN | EPOLLOUT);
    while (again && !owner.broken) again = connection.OnReady(0);
    Drain(peer);
  }
}

EventLoop* Loop() {
  static const std::shared_ptr<EventLoop> loop = *EventLoop::Start("fuzz");
  return loop.get();
}

int TryStream(const uint8_t* data, size_t size) {
  if (size < 1 || size > kInputMax) return 0;
  static Owner owner;
  std::fill(owner.inbox->span().begin(), owner.inbox->span().end(), std::byte{0});
  owner.notified.clear();
  owner.broken = false;
  const ConstByteSpan stream = std::as_bytes(std::span(data + 1, size - 1));

  int pair[2];
  LUWU_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0,
             "descriptors are left");
  const UniqueFd peer(pair[1]);
  TcpConnection connection(&owner, Loop(), UniqueFd(pair[0]));
  Posted posted(&connection);
  // Everything at once, or in pieces down to a byte.
  Feed(connection, owner, peer.get(), stream, data[0] == 0 ? stream.size() + 1 : data[0]);
  RequestList outstanding;
  connection.Detach(Error(ErrorCode::kCancelled, "the end"), &outstanding);
  outstanding.CompleteAll();

  LUWU_CHECK(posted.read.completions == 1 && posted.write.completions == 1, "each completes once");
  LUWU_CHECK(posted.target.front() == std::byte{0} && posted.target.back() == std::byte{0},
             "replies stay in their place");
  const ByteSpan weights = owner.weights->span();
  LUWU_CHECK(
      std::all_of(weights.begin(), weights.end(), [](std::byte b) { return b == std::byte{0}; }),
      "weights cannot be written");
  Replayed replayed;
  ConstByteSpan rest = stream;
  uint64_t write_id = 1;
  uint64_t read_id = 1;
  while (ReplayFrame(rest, write_id, read_id, replayed)) {
  }
  if (!replayed.known) return 0;
  LUWU_CHECK(replayed.notified == owner.notified, "the same notifications");
  LUWU_CHECK(replayed.ended == owner.broken, "the same opinion");
  LUWU_CHECK(std::equal(replayed.inbox.begin(), replayed.inbox.end(), owner.inbox->span().begin()),
             "the same bytes");
  return 0;
}

}  // namespace
}  // namespace luwu::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::transport::TryStream(data, size);
}
