// The accepting side: listens, runs the handshakes, puts connections together into links and hands
// these to their owner. All of it on one progress thread.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_budget.h"
#include "common/transport/connect.h"
#include "common/transport/event_loop.h"
#include "common/transport/pending_connection.h"
#include "common/transport/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"
#include "common/transport/verbs/adapter.h"
#include "common/transport/verbs/negotiation.h"
#include "common/transport/waiting_room.h"

namespace luwu::transport {
namespace {

// Links that a session may be setting up at a time: one, and those that its client has given up.
constexpr uint32_t kDialsOfSessionMax = 4;
// Lines about strangers.
constexpr uint32_t kLogBurst = 100;
constexpr uint32_t kLogLinesPerSecond = 5;
constexpr int kAcceptsPerTurn = 32;
constexpr uint64_t kAcceptRetryMs = 100;
// Of a verbs link: boards are small.
constexpr uint64_t kStagingBytes = 1 * kMiB;
constexpr bool kSharedReceives = true;

class ListenerOwner {
 public:
  virtual ~ListenerOwner() = default;
  virtual void OnAccepted(Kind kind, UniqueFd socket) = 0;
};

class Listener final : public Pollable {
 public:
  Listener(ListenerOwner* owner, EventLoop* loop, Kind kind, UniqueFd socket)
      : owner_(owner), loop_(loop), kind_(kind), socket_(std::move(socket)) {}

  Status Begin() { return loop_->Add(socket_.get(), this, false); }

  // Progress thread.
  void End() {
    loop_->Remove(socket_.get(), this);
    socket_.Reset();
  }

  bool OnReady(uint32_t /*events*/) override {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid()) {
        owner_->OnAccepted(kind_, std::move(fd));
        continue;
      }
      if (errno == EAGAIN) return false;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors or memory: those who knock wait in the backlog.
      const std::string why = ErrnoText(errno);
      uint64_t left_out = 0;
      if (log_.Take(std::chrono::steady_clock::now(), &left_out)) {
        LogWarning("accept_failed", "kind={} why=\"{}\" lines_left_out={}", KindName(kind_), why,
                   left_out);
      }
      loop_->SetDeadline(this, DeadlineAfter(kAcceptRetryMs));
      return false;
    }
    return true;
  }

  void OnDeadline() override { loop_->Kick(this); }

 private:
  ListenerOwner* const owner_;
  EventLoop* const loop_;
  const Kind kind_;
  UniqueFd socket_;
  LogBudget log_{kLogBurst, kLogLinesPerSecond};
};

class AcceptorImpl final : public Acceptor, public PendingOwner, public ListenerOwner {
 public:
  AcceptorImpl(std::shared_ptr<EventLoop> loop, SessionAuthority* authority,
               const VerbsOptions& verbs)
      : loop_(std::move(loop)),
        authority_(authority),
        verbs_(std::make_shared<VerbsAdapter>(loop_, verbs, kSharedReceives)) {}

  ~AcceptorImpl() override {
    Shutdown();
    verbs_->Close();
    loop_->Stop();
  }

  Status Listen(const AcceptorOptions& options) {
    shm_allowed_uids_ = options.shm_allowed_uids;
    if (options.verbs.use == VerbsUse::kOn) {
      RETURN_IF_ERROR(Annotate(verbs_->Open(), "rdma.use is \"on\""));
    } else if (options.verbs.use == VerbsUse::kAuto) {
      const Status opened = verbs_->Open();
      if (!opened.ok()) LogDebug("rdma_absent", "why=\"{}\"", MessageOf(opened));
    }
    if (!options.tcp_address.empty()) {
      ASSIGN_OR_RETURN(TcpListener tcp, ListenTcp(options.tcp_address));
      tcp_port_ = tcp.port;
      listeners_.push_back(
          std::make_unique<Listener>(this, loop_.get(), Kind::kTcp, std::move(tcp.fd)));
    }
    if (!options.shm_path.empty()) {
      ASSIGN_OR_RETURN(UniqueFd fd, ListenUnix(options.shm_path));
      shm_path_ = options.shm_path;
      listeners_.push_back(
          std::make_unique<Listener>(this, loop_.get(), Kind::kShm, std::move(fd)));
    }
    Status status = OkStatus();
    loop_->RunSync([&] {
      for (const auto& listener : listeners_) {
        if (status.ok()) status = listener->Begin();
      }
    });
    return status;
  }

  uint16_t tcp_port() const override { return tcp_port_; }

  Status CheckVerbs() override { return verbs_->Open(); }

  Status PrepareVerbs(const SessionTerms& terms) override {
    ASSIGN_OR_RETURN(const std::shared_ptr<VerbsDomain> domain, verbs_->Domain(terms.domain));
    ASSIGN_OR_RETURN(std::unique_ptr<StagingPool> staging, domain->TakeStaging(kStagingBytes));
    domain->GiveStaging(std::move(staging));
    if (!domain->device().has_windows()) return OkStatus();  // each link registers for itself
    for (const ExposedRegion& exposed : terms.exposed) {
      RETURN_IF_ERROR(domain->Register(exposed.region).status());
    }
    return OkStatus();
  }

  VerbsCounters verbs_counters() const override { return verbs_->counters(); }
  std::string DescribeVerbs() const override { return verbs_->Describe(); }

  void Shutdown() override {
    loop_->RunSync([this] {
      for (const auto& listener : listeners_) listener->End();
      listeners_.clear();
      if (!shm_path_.empty()) ::unlink(std::exchange(shm_path_, "").c_str());
      groups_.clear();
      waiting_.Clear();
      pending_.clear();
      while (!links_.empty()) {
        links_.begin()->second->Fail(
            Error(ErrorCode::kUnavailable, "the daemon's data plane is shutting down"));
      }
    });
  }

 private:
  using GroupKey = std::pair<uint64_t, uint64_t>;  // session, dial

  // ListenerOwner
  void OnAccepted(Kind kind, UniqueFd socket) override {
    const std::string peer = PeerName(socket.get());
    auto connection =
        std::make_unique<PendingConnection>(this, loop_.get(), kind, std::move(socket));
    // A peer that is gone again is no news.
    if (!connection->Begin().ok()) return;
    PendingConnection* leaving = waiting_.Enter(connection.get(), peer);
    pending_.emplace(connection.get(), std::move(connection));
    if (leaving == nullptr) return;
    uint64_t left_out = 0;
    if (shed_log_.Take(std::chrono::steady_clock::now(), &left_out)) {
      LogWarning("connection_shed",
                 "kind={} newcomer=\"{}\" waiting={} why=\"too many connections have not proved "
                 "themselves; the oldest gives way\" lines_left_out={}",
                 KindName(leaving->kind()), peer, waiting_.size(), left_out);
    }
    Forget(leaving);
  }

  // PendingOwner
  StatusOr<SessionTerms> Lookup(uint64_t session_id) override {
    return authority_->Lookup(session_id);
  }

  Status CheckUser(uint32_t uid) override {
    if (uid == 0 || uid == ::geteuid()) return OkStatus();
    if (std::find(shm_allowed_uids_.begin(), shm_allowed_uids_.end(), uid) !=
        shm_allowed_uids_.end()) {
      return OkStatus();
    }
    return Error(
        ErrorCode::kPermission,
        "the peer is user {}; only root, user {} and those of shm_allowed_uids may dial by "
        "shm",
        uid, ::geteuid());
  }

  // From here on the session answers for the connection, and the stranger's seat is free.
  Status OnAuthenticated(PendingConnection* connection) override {
    const uint64_t session_id = connection->answer().session_id;
    const auto held = std::count_if(pending_.begin(), pending_.end(), [&](const auto& entry) {
      return entry.first->authenticated() && entry.first->answer().session_id == session_id;
    });
    if (held >= int64_t{kDialsOfSessionMax} * connection->sockets()) {
      return Error(ErrorCode::kResourceExhausted,
                   "session {} has {} connections in their handshake; a link needs {}", session_id,
                   held, connection->sockets());
    }
    waiting_.Leave(connection);
    return OkStatus();
  }

  StatusOr<std::unique_ptr<VerbsNegotiation>> BeginVerbs(const SessionTerms& terms,
                                                         const FrameSeal& seal) override {
    return VerbsNegotiation::Begin(verbs_, {.domain = terms.domain,
                                            .exposed = terms.exposed,
                                            .expected = terms.expected,
                                            .queue_pairs = terms.connections,
                                            .staging_bytes = kStagingBytes,
                                            .seal = seal,
                                            .dials = false});
  }

  void OnRefused(PendingConnection* connection, const Status& why) override {
    uint64_t left_out = 0;
    if (refused_log_.Take(std::chrono::steady_clock::now(), &left_out)) {
      LogWarning("connection_refused", "kind={} session={} why=\"{}\" lines_left_out={}",
                 KindName(connection->kind()), connection->answer().session_id, ToString(why),
                 left_out);
    }
    Forget(connection);
  }

  void OnProved(PendingConnection* connection) override {
    if (connection->kind() == Kind::kShm) return LinkShm(connection);
    if (connection->kind() == Kind::kVerbs) return LinkVerbs(connection);
    const Answer& answer = connection->answer();
    const GroupKey key = {answer.session_id, answer.link_id};
    auto& group = groups_[key];
    if (group.empty()) group.resize(answer.connections);
    PendingConnection*& seat = group[answer.connection];
    if (group.size() != answer.connections || seat != nullptr) {
      return OnRefused(connection, Error(ErrorCode::kInvalidArgument,
                                         "connection {} was opened twice", answer.connection));
    }
    seat = connection;
    for (const PendingConnection* other : group) {
      if (other != nullptr) continue;
      const Status confirmed = connection->Confirm();
      if (!confirmed.ok()) OnRefused(connection, confirmed);
      return;
    }
    LinkTcp(key, connection);
  }

  // Forgets a connection that will not belong to a link.
  void Forget(PendingConnection* connection) {
    for (auto it = groups_.begin(); it != groups_.end();) {
      auto& group = it->second;
      bool empty = true;
      for (PendingConnection*& seat : group) {
        if (seat == connection) seat = nullptr;
        if (seat != nullptr) empty = false;
      }
      it = empty ? groups_.erase(it) : std::next(it);
    }
    waiting_.Leave(connection);
    pending_.erase(connection);
  }

  void LinkShm(PendingConnection* connection) {
    FenceFormer(connection->answer().session_id);
    const Status confirmed = connection->Confirm();
    if (!confirmed.ok()) return OnRefused(connection, confirmed);
    const uint64_t session_id = connection->answer().session_id;
    LinkParts parts = {loop_, session_id, connection->terms().exposed,
                       connection->terms().expected};
    std::vector<MappedRegion> regions = connection->TakeRegions();
    UniqueFd socket = connection->TakeSocket();
    Forget(connection);
    Launch(session_id,
           std::make_unique<ShmEndpoint>(std::move(parts), std::move(socket), std::move(regions)));
  }

  void LinkVerbs(PendingConnection* connection) {
    const uint64_t session_id = connection->answer().session_id;
    FenceFormer(session_id);
    const Status confirmed = connection->Confirm();
    if (!confirmed.ok()) return OnRefused(connection, confirmed);
    std::unique_ptr<VerbsEndpoint> link = connection->FinishVerbs(
        {loop_, session_id, connection->terms().exposed, connection->terms().expected});
    Forget(connection);
    Launch(session_id, std::move(link));
  }

  // `last` completes the group.
  void LinkTcp(const GroupKey& key, PendingConnection* last) {
    const uint64_t session_id = key.first;
    FenceFormer(session_id);
    const Status confirmed = last->Confirm();
    if (!confirmed.ok()) return OnRefused(last, confirmed);
    LinkParts parts = {loop_, session_id, last->terms().exposed, last->terms().expected};
    const std::vector<PendingConnection*> group = groups_[key];
    std::vector<UniqueFd> sockets;
    for (PendingConnection* connection : group) sockets.push_back(connection->TakeSocket());
    for (PendingConnection* connection : group) Forget(connection);
    Launch(session_id, std::make_unique<TcpEndpoint>(std::move(parts), std::move(sockets)));
  }

  void FenceFormer(uint64_t session_id) {
    const auto former = links_.find(session_id);
    if (former == links_.end()) return;
    former->second->Fence(
        Error(ErrorCode::kUnavailable, "a new link of session {} replaces this one", session_id));
  }

  void Launch(uint64_t session_id, std::unique_ptr<Link> link) {
    Link* raw = link.get();
    links_[session_id] = raw;
    // The link leaves this table when it fails or closes, at the latest in Shutdown.
    raw->set_on_teardown([this, session_id, raw] {
      const auto found = links_.find(session_id);
      if (found != links_.end() && found->second == raw) links_.erase(found);
    });
    LinkEvents* events = authority_->OnLink(session_id, std::move(link));
    const auto found = links_.find(session_id);
    if (found == links_.end() || found->second != raw) return;  // its owner closed it at once
    if (events == nullptr) {
      return raw->Fail(Error(ErrorCode::kFenced, "session {} takes no link", session_id));
    }
    LogInfo("link_up", "session={} kind={}", session_id, KindName(raw->kind()));
    raw->Start(events);
  }

  const std::shared_ptr<EventLoop> loop_;
  SessionAuthority* const authority_;
  const std::shared_ptr<VerbsAdapter> verbs_;
  uint16_t tcp_port_ = 0;
  std::vector<uint32_t> shm_allowed_uids_;  // constant once we listen

  // Progress thread.
  std::string shm_path_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<PendingConnection*, std::unique_ptr<PendingConnection>> pending_;
  WaitingRoom waiting_;  // those of them that have not proved themselves
  LogBudget refused_log_{kLogBurst, kLogLinesPerSecond};
  LogBudget shed_log_{kLogBurst, kLogLinesPerSecond};
  std::map<GroupKey, std::vector<PendingConnection*>> groups_;
  std::unordered_map<uint64_t, Link*> links_;
};

}  // namespace

StatusOr<std::unique_ptr<Acceptor>> MakeAcceptor(const AcceptorOptions& options,
                                                 SessionAuthority* authority) {
  ASSIGN_OR_RETURN(std::shared_ptr<EventLoop> loop, EventLoop::Start("luwu-rx"));
  auto acceptor = std::make_unique<AcceptorImpl>(std::move(loop), authority, options.verbs);
  RETURN_IF_ERROR(acceptor->Listen(options));
  return std::unique_ptr<Acceptor>(std::move(acceptor));
}

}  // namespace luwu::transport
