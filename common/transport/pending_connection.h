// One accepted connection until it belongs to a link: the acceptor's half of the handshake as a
// state machine on the progress thread. Its peer is hostile until its MAC has been checked; a wrong
// byte, a wrong user, silence of over 5 s, or anything out of order ends it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/connect.h"
#include "common/transport/event_loop.h"
#include "common/transport/handshake.h"
#include "common/transport/shm/region_exchange.h"
#include "common/transport/shm/shm_endpoint.h"
#include "common/transport/verbs/frames.h"
#include "common/transport/verbs/negotiation.h"

namespace luwu::transport {

class PendingConnection;

class PendingOwner {
 public:
  virtual ~PendingOwner() = default;
  virtual StatusOr<SessionTerms> Lookup(uint64_t session_id) = 0;
  // Whether processes of this user may dial by shm.
  virtual Status CheckUser(uint32_t uid) = 0;
  // The peer knows the secret of the session in answer(). An error: it has too much under way.
  virtual Status OnAuthenticated(PendingConnection* connection) = 0;
  // Begins our part of a verbs link, or says why there can be none.
  virtual StatusOr<std::unique_ptr<VerbsNegotiation>> BeginVerbs(const SessionTerms& terms,
                                                                 const FrameSeal& seal) = 0;
  // The peer has proved itself, and its regions (shm) are mapped or its keys (verbs) are here. May
  // destroy the connection.
  virtual void OnProved(PendingConnection* connection) = 0;
  // Destroys the connection.
  virtual void OnRefused(PendingConnection* connection, const Status& why) = 0;
};

class PendingConnection final : public Pollable {
 public:
  PendingConnection(PendingOwner* owner, EventLoop* loop, Kind kind, UniqueFd socket);
  ~PendingConnection() override;

  // Sends the nonce and starts the clock.
  Status Begin();
  bool OnReady(uint32_t events) override;
  // Whether the peer has shown that it knows the session's secret.
  bool authenticated() const { return authenticated_; }
  void OnDeadline() override;

  // What follows holds once OnProved has been called.

  // Our own proof: the MAC (tcp), the verdict "up" (shm, whose MAC went with the regions), or our
  // keys (verbs): after this the peer may move data.
  Status Confirm();
  Kind kind() const { return kind_; }
  const Answer& answer() const { return answer_; }
  const SessionTerms& terms() const { return *terms_; }
  // Sockets that make up a link of this kind to the session. Once its terms are known.
  uint32_t sockets() const { return kind_ == Kind::kTcp ? terms_->connections : 1; }
  // Each may be called once; then only destruction follows.
  UniqueFd TakeSocket();
  std::vector<MappedRegion> TakeRegions() { return std::move(regions_); }
  std::unique_ptr<VerbsEndpoint> FinishVerbs(LinkParts parts);

 private:
  enum class State { kAnswer, kRegions, kOffer, kKeys, kProved };

  // True when the state has been left, false when more bytes are needed.
  StatusOr<bool> ReceiveAnswer();
  StatusOr<bool> ReceiveRegions();
  StatusOr<bool> ReceiveFrames();
  Status BeginVerbs();
  Status RefuseVerbs(const Status& why);
  FrameSeal Seal() const;
  Status CheckAnswer();
  Status SendNow(ConstByteSpan bytes);
  Status SendMac();

  PendingOwner* const owner_;
  EventLoop* const loop_;
  Kind kind_;  // kTcp may turn out to be kVerbs
  UniqueFd socket_;
  State state_ = State::kAnswer;
  bool authenticated_ = false;
  const Nonce nonce_ = RandomNonce();
  Answer answer_ = {};
  size_t answer_bytes_ = 0;
  std::optional<SessionTerms> terms_;
  RegionReceiver receiver_;
  std::vector<MappedRegion> regions_;
  FrameReader frame_;
  std::unique_ptr<VerbsNegotiation> negotiation_;
};

}  // namespace luwu::transport
