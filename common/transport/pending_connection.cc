#include "common/transport/pending_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr uint64_t kHandshakeMs = 5'000;
constexpr int kFrameBufferBytes = 256 * 1024;

}  // namespace

PendingConnection::PendingConnection(PendingOwner* owner, EventLoop* loop, Kind kind,
                                     UniqueFd socket)
    : owner_(owner), loop_(loop), kind_(kind), socket_(std::move(socket)) {}

PendingConnection::~PendingConnection() { loop_->Remove(socket_.get(), this); }

Status PendingConnection::Begin() {
  if (kind_ == Kind::kTcp) RETURN_IF_ERROR(TuneTcp(socket_.get()));
  RETURN_IF_ERROR(SendNow(nonce_));
  loop_->SetDeadline(this, DeadlineAfter(kHandshakeMs));
  return loop_->Add(socket_.get(), this, false);
}

// The socket buffer of a connection in its handshake holds all that we ever send.
Status PendingConnection::SendNow(ConstByteSpan bytes) {
  const ssize_t sent =
      ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return OkStatus();
  return Error(ErrorCode::kUnavailable, "the peer is gone: {}",
               sent < 0 ? ErrnoText(errno) : std::string("it takes no bytes"));
}

Status PendingConnection::SendMac() {
  return SendNow(HandshakeMac(terms_->secret, kRoleDaemon, nonce_, answer_));
}

Status PendingConnection::Confirm() {
  if (kind_ == Kind::kTcp) return SendMac();
  if (kind_ == Kind::kShm) return SendNow(BytesOf(MakeVerdict(OkStatus())));
  const auto keys = negotiation_->KeysFrame();
  return keys.ok() ? SendNow(*keys) : RefuseVerbs(keys.status());
}

UniqueFd PendingConnection::TakeSocket() {
  loop_->Remove(socket_.get(), this);
  return std::move(socket_);
}

void PendingConnection::OnDeadline() {
  owner_->OnRefused(this,
                    Error(ErrorCode::kDeadline, "the handshake took over {} ms", kHandshakeMs));
}

bool PendingConnection::OnReady(uint32_t events) {
  StatusOr<bool> left = false;
  if (state_ == State::kAnswer) left = ReceiveAnswer();
  if (left.ok() && state_ == State::kRegions) left = ReceiveRegions();
  if (left.ok() && (state_ == State::kOffer || state_ == State::kKeys)) left = ReceiveFrames();
  if (!left.ok()) {
    owner_->OnRefused(this, left.status());
  } else if (*left) {
    owner_->OnProved(this);
  } else if (state_ == State::kProved && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    owner_->OnRefused(this, Error(ErrorCode::kUnavailable,
                                  "the peer closed before its other connections were there"));
  }
  return false;  // bytes that come early wait in the socket for the link
}

StatusOr<bool> PendingConnection::ReceiveAnswer() {
  const ByteSpan bytes = WritableBytesOf(answer_);
  while (answer_bytes_ < bytes.size()) {
    const ByteSpan rest = bytes.subspan(answer_bytes_);
    const ssize_t count = ::recv(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count < 0) return Error(ErrorCode::kUnavailable, "{}", ErrnoText(errno));
    if (count == 0) return Error(ErrorCode::kUnavailable, "the peer closed in the handshake");
    answer_bytes_ += static_cast<size_t>(count);
  }
  RETURN_IF_ERROR(CheckAnswer());
  if (kind_ == Kind::kTcp) {
    state_ = State::kProved;
    return true;
  }
  RETURN_IF_ERROR(SendMac());
  if (kind_ == Kind::kVerbs) {
    RETURN_IF_ERROR(BeginVerbs());
    return false;
  }
  RETURN_IF_ERROR(SendRegions(socket_.get(), terms_->exposed));
  state_ = State::kRegions;
  return false;
}

Status PendingConnection::CheckAnswer() {
  // Both are dialled at the same port.
  const bool verbs = answer_.kind == static_cast<uint32_t>(Kind::kVerbs);
  if (kind_ == Kind::kTcp && verbs) kind_ = Kind::kVerbs;
  if (answer_.magic != kAnswerMagic || answer_.kind != static_cast<uint32_t>(kind_)) {
    return Error(ErrorCode::kInvalidArgument, "what came is no handshake of a {} connection",
                 KindName(kind_));
  }
  if (kind_ == Kind::kShm) {
    ASSIGN_OR_RETURN(const uint32_t uid, PeerUid(socket_.get()));
    RETURN_IF_ERROR(owner_->CheckUser(uid));
  }
  ASSIGN_OR_RETURN(terms_, owner_->Lookup(answer_.session_id));
  const Mac expected = HandshakeMac(terms_->secret, kRoleClient, nonce_, answer_);
  if (!MacEqual(answer_.mac, expected)) {
    return Error(ErrorCode::kPermission, "wrong MAC: the peer does not know the session's secret");
  }
  const uint32_t connections = kind_ == Kind::kShm ? 1 : terms_->connections;
  if (answer_.connections != connections || answer_.connection >= sockets()) {
    return Error(ErrorCode::kInvalidArgument,
                 "connection {} of {} was opened, but the session has {}", answer_.connection,
                 answer_.connections, connections);
  }
  RETURN_IF_ERROR(owner_->OnAuthenticated(this));
  authenticated_ = true;
  return OkStatus();
}

StatusOr<bool> PendingConnection::ReceiveRegions() {
  ASSIGN_OR_RETURN(const bool complete, receiver_.Receive(socket_.get()));
  if (!complete) return false;
  Status status = receiver_.Check(terms_->expected);
  if (status.ok()) {
    auto regions = receiver_.Map();
    status = regions.status();
    if (regions.ok()) regions_ = *std::move(regions);
  }
  if (!status.ok()) {
    RETURN_IF_ERROR(SendNow(BytesOf(MakeVerdict(status))));
    return status;
  }
  state_ = State::kProved;
  return true;
}

// ---- verbs -------------------------------------------------------------------------------------

FrameSeal PendingConnection::Seal() const { return {terms_->secret, nonce_, answer_.nonce}; }

// The peer hears why, then the connection ends.
Status PendingConnection::RefuseVerbs(const Status& why) {
  RETURN_IF_ERROR(SendNow(SealRefusal(Seal(), kRoleDaemon, why)));
  return why;
}

Status PendingConnection::BeginVerbs() {
  auto begun = owner_->BeginVerbs(*terms_, Seal());
  if (!begun.ok()) return RefuseVerbs(begun.status());
  negotiation_ = *std::move(begun);
  // All keys at once, see SendNow.
  const int bytes = kFrameBufferBytes;
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  state_ = State::kOffer;
  return OkStatus();
}

StatusOr<bool> PendingConnection::ReceiveFrames() {
  while (!frame_.whole()) {
    const ByteSpan room = frame_.Room();
    const ssize_t count = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count < 0) return Error(ErrorCode::kUnavailable, "{}", ErrnoText(errno));
    if (count == 0) return Error(ErrorCode::kUnavailable, "the peer closed in the handshake");
    RETURN_IF_ERROR(frame_.Advance(static_cast<size_t>(count)));
  }
  if (state_ == State::kOffer) {
    const Status connected = negotiation_->OnOffer(&frame_);
    if (!connected.ok()) return RefuseVerbs(connected);
    RETURN_IF_ERROR(SendNow(negotiation_->OfferFrame()));
    state_ = State::kKeys;
    return ReceiveFrames();
  }
  const Status taken = negotiation_->OnKeys(&frame_);
  if (!taken.ok()) return RefuseVerbs(taken);
  state_ = State::kProved;
  return true;
}

std::unique_ptr<VerbsEndpoint> PendingConnection::FinishVerbs(LinkParts parts) {
  return negotiation_->Finish(std::move(parts), TakeSocket());
}

}  // namespace luwu::transport
