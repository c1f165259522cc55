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
#include "common/transport/verbs/adapter.h"
#include "common/transport/verbs/negotiation.h"

namespace luwu::transport {
namespace {

// One protection domain for all links of a dialler: what it pins is good for each of them.
constexpr uint64_t kDomain = 0;
// Of each verbs link: what 16 shards of a megabyte need in flight.
constexpr uint64_t kStagingBytes = 16 * kMiB;
constexpr bool kSharedReceives = true;

Status CheckOptions(const DialOptions& options) {
  const uint32_t most = options.kind == Kind::kVerbs ? kQueuePairsMax : kConnectionsMax;
  if (options.kind != Kind::kShm && (options.connections == 0 || options.connections > most)) {
    return Error(ErrorCode::kInvalidArgument, "a {} link has 1 to {} connections, not {}",
                 KindName(options.kind), most, options.connections);
  }
  for (const ExposedRegion& exposed : options.exposed) {
    if (exposed.region == nullptr) {
      return Error(ErrorCode::kInvalidArgument, "exposed region {} is null", exposed.id);
    }
  }
  return OkStatus();
}

// Proves both ends to each other on a fresh connection; both nonces are in *seal then.
Status Handshake(int fd, const DialOptions& options, Answer answer, FrameSeal* seal) {
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
  *seal = {options.secret, acceptor_nonce, answer.nonce};
  return OkStatus();
}

Answer AnswerFor(const DialOptions& options, uint64_t link_id) {
  Answer answer = {};
  answer.magic = kAnswerMagic;
  answer.kind = static_cast<uint32_t>(options.kind);
  answer.session_id = options.session_id;
  answer.link_id = link_id;
  answer.connections = options.kind == Kind::kShm ? 1 : options.connections;
  return answer;
}

LinkParts PartsFor(const std::shared_ptr<EventLoop>& loop, const DialOptions& options) {
  return {loop, options.session_id, options.exposed, options.expected};
}

StatusOr<std::unique_ptr<Link>> DialTcp(const std::shared_ptr<EventLoop>& loop,
                                        const DialOptions& options) {
  Answer answer = AnswerFor(options, RandomU64());
  std::vector<UniqueFd> sockets;
  FrameSeal seal;
  for (; answer.connection < answer.connections; ++answer.connection) {
    ASSIGN_OR_RETURN(UniqueFd fd, ConnectTcp(options.address, options.deadline));
    RETURN_IF_ERROR(Handshake(fd.get(), options, answer, &seal));
    sockets.push_back(std::move(fd));
  }
  return std::make_unique<TcpEndpoint>(PartsFor(loop, options), std::move(sockets));
}

StatusOr<std::unique_ptr<Link>> DialShm(const std::shared_ptr<EventLoop>& loop,
                                        const DialOptions& options) {
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectUnix(options.address, options.deadline));
  FrameSeal seal;
  RETURN_IF_ERROR(Handshake(fd.get(), options, AnswerFor(options, RandomU64()), &seal));
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

StatusOr<std::unique_ptr<Link>> DialVerbs(const std::shared_ptr<EventLoop>& loop,
                                          const std::shared_ptr<VerbsAdapter>& adapter,
                                          const DialOptions& options) {
  RETURN_IF_ERROR(adapter->Open());
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectTcp(options.address, options.deadline));
  NegotiationTerms terms = {.domain = kDomain,
                            .exposed = options.exposed,
                            .expected = options.expected,
                            .queue_pairs = options.connections,
                            .staging_bytes = kStagingBytes,
                            .seal = {},
                            .dials = true};
  RETURN_IF_ERROR(Handshake(fd.get(), options, AnswerFor(options, RandomU64()), &terms.seal));
  ASSIGN_OR_RETURN(const std::unique_ptr<VerbsNegotiation> negotiation,
                   NegotiateAsDialler(adapter, std::move(terms), fd.get(), options.deadline));
  return negotiation->Finish(PartsFor(loop, options), std::move(fd));
}

class DiallerImpl final : public Dialler {
 public:
  DiallerImpl(std::shared_ptr<EventLoop> loop, const VerbsOptions& verbs)
      : loop_(std::move(loop)),
        verbs_(std::make_shared<VerbsAdapter>(loop_, verbs, !kSharedReceives)) {}
  ~DiallerImpl() override {
    verbs_->Close();
    loop_->Stop();
  }

  Status CheckVerbs() override { return verbs_->Open(); }

  StatusOr<std::shared_ptr<const void>> Pin(ByteSpan memory) override {
    if (memory.empty() || !verbs_->Open().ok()) return std::shared_ptr<const void>();
    std::shared_ptr<VerbsDomain> domain;
    {
      MutexLock lock(mutex_);
      if (domain_ == nullptr) {
        ASSIGN_OR_RETURN(domain_, verbs_->Domain(kDomain));
      }
      domain = domain_;
    }
    ASSIGN_OR_RETURN(MrHandle pinned, domain->Pin(memory));
    return std::shared_ptr<const void>(std::move(pinned));
  }

  StatusOr<std::unique_ptr<Endpoint>> Dial(const DialOptions& options,
                                           LinkEvents* events) override {
    LUWU_CHECK(!loop_->OnLoopThread(), "dialling blocks, so not on the progress thread");
    RETURN_IF_ERROR(CheckOptions(options));
    auto link = options.kind == Kind::kTcp   ? DialTcp(loop_, options)
                : options.kind == Kind::kShm ? DialShm(loop_, options)
                                             : DialVerbs(loop_, verbs_, options);
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
  const std::shared_ptr<VerbsAdapter> verbs_;
  Mutex mutex_;
  std::shared_ptr<VerbsDomain> domain_ LUWU_GUARDED_BY(mutex_);  // keeps what is pinned findable
};

}  // namespace

StatusOr<std::unique_ptr<Dialler>> MakeDialler(const VerbsOptions& verbs) {
  ASSIGN_OR_RETURN(std::shared_ptr<EventLoop> loop, EventLoop::Start("luwu-io"));
  return std::unique_ptr<Dialler>(std::make_unique<DiallerImpl>(std::move(loop), verbs));
}

}  // namespace luwu::transport
