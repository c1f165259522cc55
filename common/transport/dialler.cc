// The dialling side: blocking handshakes in the caller's thread, then the link is handed to the
// progress thread.
#include <unistd.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/transport/connect.h"
#include "common/transport/event_loop.h"
#include "common/transport/handshake.h"
#include "common/transport/shm/region_exchange.h"
#include "common/transport/shm/shm_endpoint.h"
#include "common/transport/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace luwu::transport {
namespace {

Status CheckOptions(const DialOptions& options) {
  if (options.kind == Kind::kTcp &&
      (options.connections == 0 || options.connections > kConnectionsMax)) {
    return Error(ErrorCode::kInvalidArgument, "a link has 1 to {} connections, not {}",
                 kConnectionsMax, options.connections);
  }
  for (const ExposedRegion& exposed : options.exposed) {
    if (exposed.region == nullptr) {
      return Error(ErrorCode::kInvalidArgument, "exposed region {} is null", exposed.id);
    }
  }
  return OkStatus();
}

// Proves both ends to each other on a fresh connection.
Status Handshake(int fd, const DialOptions& options, Answer answer) {
  Nonce acceptor_nonce;
  RETURN_IF_ERROR(ReceiveExact(fd, WritableBytesOf(acceptor_nonce), options.deadline));
  answer.nonce = RandomNonce();
  answer.mac = HandshakeMac(options.secret, kRoleClient, acceptor_nonce, answer);
  RETURN_IF_ERROR(SendExact(fd, BytesOf(answer), options.deadline));
  Mac mac;
  const Status received = ReceiveExact(fd, WritableBytesOf(mac), options.deadline);
  if (CodeOf(received) == ErrorCode::kUnavailable) {
    return Error(ErrorCode::kUnavailable,
                 "the daemon refused session {}: it does not know it, or secret, user or number "
                 "of connections differ ({})",
                 options.session_id, MessageOf(received));
  }
  RETURN_IF_ERROR(received);
  if (!MacEqual(mac, HandshakeMac(options.secret, kRoleDaemon, acceptor_nonce, answer))) {
    return Error(ErrorCode::kPermission,
                 "the peer does not know the secret of session {}; it is not our daemon",
                 options.session_id);
  }
  return OkStatus();
}

Answer AnswerFor(const DialOptions& options, uint64_t link_id) {
  Answer answer = {};
  answer.magic = kAnswerMagic;
  answer.kind = static_cast<uint32_t>(options.kind);
  answer.session_id = options.session_id;
  answer.link_id = link_id;
  answer.connections = options.kind == Kind::kTcp ? options.connections : 1;
  return answer;
}

LinkParts PartsFor(const std::shared_ptr<EventLoop>& loop, const DialOptions& options) {
  return {loop, options.session_id, options.exposed, options.expected};
}

StatusOr<std::unique_ptr<Link>> DialTcp(const std::shared_ptr<EventLoop>& loop,
                                        const DialOptions& options) {
  Answer answer = AnswerFor(options, RandomU64());
  std::vector<UniqueFd> sockets;
  for (; answer.connection < answer.connections; ++answer.connection) {
    ASSIGN_OR_RETURN(UniqueFd fd, ConnectTcp(options.address, options.deadline));
    RETURN_IF_ERROR(Handshake(fd.get(), options, answer));
    sockets.push_back(std::move(fd));
  }
  return std::make_unique<TcpEndpoint>(PartsFor(loop, options), std::move(sockets));
}

StatusOr<std::unique_ptr<Link>> DialShm(const std::shared_ptr<EventLoop>& loop,
                                        const DialOptions& options) {
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectUnix(options.address, options.deadline));
  RETURN_IF_ERROR(Handshake(fd.get(), options, AnswerFor(options, RandomU64())));
  RegionReceiver receiver;
  while (true) {
    ASSIGN_OR_RETURN(const bool complete, receiver.Receive(fd.get()));
    if (complete) break;
    RETURN_IF_ERROR(WaitReadable(fd.get(), options.deadline));
  }
  RETURN_IF_ERROR(receiver.Check(options.expected));
  RETURN_IF_ERROR(SendRegions(fd.get(), options.exposed));
  Verdict verdict;
  RETURN_IF_ERROR(ReceiveExact(fd.get(), WritableBytesOf(verdict), options.deadline));
  RETURN_IF_ERROR(ReadVerdict(verdict));
  // Last, for it takes long when the regions are big.
  ASSIGN_OR_RETURN(std::vector<MappedRegion> regions, receiver.Map());
  return std::make_unique<ShmEndpoint>(PartsFor(loop, options), std::move(fd), std::move(regions));
}

class DiallerImpl final : public Dialler {
 public:
  explicit DiallerImpl(std::shared_ptr<EventLoop> loop) : loop_(std::move(loop)) {}
  ~DiallerImpl() override { loop_->Stop(); }

  StatusOr<std::unique_ptr<Endpoint>> Dial(const DialOptions& options,
                                           LinkEvents* events) override {
    LUWU_CHECK(!loop_->OnLoopThread(), "dialling blocks, so not on the progress thread");
    RETURN_IF_ERROR(CheckOptions(options));
    auto link = options.kind == Kind::kTcp ? DialTcp(loop_, options) : DialShm(loop_, options);
    if (!link.ok()) {
      return Annotate(link.status(),
                      fmt::format("{} link to {}", KindName(options.kind), options.address));
    }
    loop_->RunSync([&] { (*link)->Start(events); });
    LogInfo("link_up", "session={} kind={} peer={}", options.session_id, KindName(options.kind),
            options.address);
    return std::unique_ptr<Endpoint>(*std::move(link));
  }

 private:
  std::shared_ptr<EventLoop> loop_;
};

}  // namespace

StatusOr<std::unique_ptr<Dialler>> MakeDialler() {
  ASSIGN_OR_RETURN(std::shared_ptr<EventLoop> loop, EventLoop::Start("luwu-io"));
  return std::unique_ptr<Dialler>(std::make_unique<DiallerImpl>(std::move(loop)));
}

}  // namespace luwu::transport
