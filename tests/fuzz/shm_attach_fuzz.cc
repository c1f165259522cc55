// A process that knocks at the shm socket: the bytes of its handshake, then its regions with
// descriptors of every kind, all the way to the mapping; and as a client, a daemon's verdict.
//
// Input: bit 0 of the first byte: with the right MAC, the answer being otherwise the bytes of the
// input; the second says how many descriptors come with the regions, the third, by two bits each,
// of which kind the first four are.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "common/transport/pending_connection.h"
#include "common/transport/shm/region_exchange.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr size_t kHeadBytes = 3;
constexpr uint64_t kBoardBytes = 8192;

SessionTerms Terms() {
  SessionTerms terms;
  terms.expected = {{3, kBoardBytes, Access::kRemoteWrite}};
  return terms;
}

class Owner final : public PendingOwner {
 public:
  StatusOr<SessionTerms> Lookup(uint64_t session_id) override {
    if (session_id == 1) return Terms();
    return Error(ErrorCode::kNotFound, "no session {}", session_id);
  }
  Status CheckUser(uint32_t /*uid*/) override { return OkStatus(); }
  Status OnAuthenticated(PendingConnection* /*connection*/) override { return OkStatus(); }
  StatusOr<std::unique_ptr<VerbsNegotiation>> BeginVerbs(const SessionTerms& /*terms*/,
                                                         const FrameSeal& /*seal*/) override {
    return Error(ErrorCode::kUnsupported, "no device");
  }
  void OnProved(PendingConnection* /*connection*/) override { proved = true; }
  void OnRefused(PendingConnection* /*connection*/, const Status& why) override {
    LUWU_CHECK(!why.ok() && !refused, "refused once, with a reason");
    refused = true;
  }

  bool proved = false;
  bool refused = false;
};

UniqueFd Memory(uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  LUWU_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0, "a small memfd");
  LUWU_CHECK(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0, "it can be sealed");
  return fd;
}

// As agreed; too small; without seals; no memfd at all.
const std::array<UniqueFd, 4>& Kinds() {
  static const std::array<UniqueFd, 4> kinds = {
      Memory(kBoardBytes, F_SEAL_SHRINK), Memory(kBoardBytes / 2, F_SEAL_SHRINK),
      Memory(kBoardBytes, 0), UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))};
  return kinds;
}

void SendRegionBytes(int socket, ConstByteSpan bytes, size_t count, uint8_t kinds) {
  if (bytes.empty()) return;
  std::vector<int> fds;
  for (size_t i = 0; i < count; ++i) fds.push_back(Kinds()[kinds >> (2 * (i % 4)) & 3].get());
  iovec piece = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg only reads
  std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * count);
  }
  (void)::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Answer AnswerOf(ConstByteSpan bytes, bool right, const Nonce& nonce) {
  Answer answer = {};
  std::memcpy(&answer, bytes.data(), std::min(bytes.size(), sizeof answer));
  if (!right) return answer;
  answer.magic = kAnswerMagic;
  answer.kind = static_cast<uint32_t>(Kind::kShm);
  answer.session_id = 1;
  answer.connection = 0;
  answer.connections = 1;
  answer.mac = HandshakeMac(Terms().secret, kRoleClient, nonce, answer);
  return answer;
}

// On the loop's thread.
void Attach(EventLoop* loop, ConstByteSpan input) {
  const bool right = (input[0] & std::byte{1}) != std::byte{0};
  const size_t fds = static_cast<size_t>(input[1]) % (kRegionsMax + 4);
  const auto kinds = static_cast<uint8_t>(input[2]);
  const ConstByteSpan rest = input.subspan(kHeadBytes);
  int pair[2];
  LUWU_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0,
             "descriptors are left");
  const UniqueFd peer(pair[1]);
  Owner owner;
  PendingConnection connection(&owner, loop, Kind::kShm, UniqueFd(pair[0]));
  LUWU_CHECK(connection.Begin().ok(), "the peer is there");
  Nonce nonce;
  LUWU_CHECK(ReceiveExact(peer.get(), WritableBytesOf(nonce), DeadlineAfter(60'000)).ok(),
             "the nonce comes first");
  const Answer answer = AnswerOf(rest, right, nonce);
  (void)SendExact(peer.get(), BytesOf(answer), DeadlineAfter(60'000));
  const bool whole = right || rest.size() >= sizeof answer;
  connection.OnReady(EPOLLIN);
  LUWU_CHECK(!owner.proved, "no link without regions");
  LUWU_CHECK(!whole || right || owner.refused, "a MAC cannot be guessed");
  if (owner.refused) return;
  SendRegionBytes(peer.get(), rest, fds, kinds);
  connection.OnReady(EPOLLIN);
  if (!owner.proved) return;
  LUWU_CHECK(fds == 1 && (kinds & 3) == 0, "the agreed region and nothing else");
  RegionEntry entry;
  LUWU_CHECK(rest.size() >= offsetof(RegionFrame, entries) + sizeof entry, "a whole frame");
  std::memcpy(&entry, rest.data() + offsetof(RegionFrame, entries), sizeof entry);
  LUWU_CHECK(entry.id == 3 && entry.access == 2 && entry.bytes == kBoardBytes, "in all its bits");
  const std::vector<MappedRegion> regions = connection.TakeRegions();
  LUWU_CHECK(regions.size() == 1 && regions[0].descriptor == Terms().expected[0] &&
                 regions[0].mapping.bytes() == kBoardBytes,
             "as agreed");
}

void TryVerdict(ConstByteSpan bytes) {
  Verdict verdict = {};
  std::memcpy(&verdict, bytes.data(), std::min(bytes.size(), sizeof verdict));
  for (const uint32_t magic : {verdict.magic, kVerdictMagic}) {
    verdict.magic = magic;
    const Status status = ReadVerdict(verdict);
    const bool up = magic == kVerdictMagic && verdict.code == 0;
    LUWU_CHECK(status.ok() == up, "up is one word only");
    for (const char c : MessageOf(status)) LUWU_CHECK(c >= ' ' && c <= '~', "fit for a log");
  }
}

// The number that the next descriptor gets, which is the lowest free one.
int NextDescriptor() { return UniqueFd(::fcntl(0, F_DUPFD_CLOEXEC, 3)).get(); }

int TryPeer(const uint8_t* data, size_t size) {
  if (size < kHeadBytes) return 0;
  // OpenSSL is begun before the loop, so that at the exit it goes after the loop's thread.
  static const Secret first = RandomSecret();
  static const std::shared_ptr<EventLoop> loop = *EventLoop::Start("fuzz");
  LUWU_CHECK(first.size() == kSecretBytes, "OpenSSL is there");
  (void)Kinds();
  const ConstByteSpan input = std::as_bytes(std::span(data, size));
  const int before = NextDescriptor();
  loop->RunSync([&] { Attach(loop.get(), input); });
  LUWU_CHECK(NextDescriptor() == before, "every descriptor that came is closed again");
  TryVerdict(input);
  return 0;
}

}  // namespace
}  // namespace luwu::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::transport::TryPeer(data, size);
}
