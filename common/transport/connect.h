// Making links. The control plane has already given both ends a session id, a session secret and
// each other's region descriptors; here the client dials and the daemon accepts.
//
// Handshake of every connection: the acceptor sends a 32-byte nonce; the dialler answers with
// session id, connection number, its own nonce and HMAC-SHA256(secret, role "client" | nonces |
// ids); the acceptor answers with the MAC under role "daemon". A wrong MAC, an unknown session, a
// stall of over 5 s or any other bytes close the connection before anything else is read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/hmac.h"
#include "common/base/status.h"
#include "common/transport/region.h"
#include "common/transport/transport.h"

namespace luwu::transport {

inline constexpr uint32_t kConnectionsMax = 16;

// ---- client -----------------------------------------------------------------------------------

struct DialOptions {
  Kind kind = Kind::kTcp;
  std::string address;  // "host:port" (tcp) or a socket path (shm)
  uint64_t session_id = 0;
  Secret secret = {};
  ExposedRegions exposed;                  // ours, e.g. the board
  std::vector<RegionDescriptor> expected;  // the peer's
  uint32_t connections = 2;                // tcp only
  TimePoint deadline;
};

// Owns the progress thread that all its endpoints share; destroy the endpoints first.
class Dialler {
 public:
  virtual ~Dialler() = default;
  // `events` must outlive the endpoint. Blocks until connected, failed, or the deadline.
  virtual StatusOr<std::unique_ptr<Endpoint>> Dial(const DialOptions& options,
                                                   LinkEvents* events) = 0;
};
StatusOr<std::unique_ptr<Dialler>> MakeDialler();

// ---- daemon -----------------------------------------------------------------------------------

// What the acceptor asks its owner about a session that knocks.
struct SessionTerms {
  Secret secret = {};
  ExposedRegions exposed;                  // ours: weights, inbox
  std::vector<RegionDescriptor> expected;  // the client's: board
  uint32_t connections = 1;                // how many tcp connections make up the link
};

class SessionAuthority {
 public:
  virtual ~SessionAuthority() = default;
  // Called on the progress thread before the MAC is checked. kNotFound, kFenced... refuse.
  virtual StatusOr<SessionTerms> Lookup(uint64_t session_id) = 0;
  // The link is up (all connections authenticated, regions mapped). Returns the events of the
  // link, which must outlive the endpoint. The owner keeps the endpoint; an older endpoint of the
  // same session has already been disconnected.
  virtual LinkEvents* OnLink(uint64_t session_id, std::unique_ptr<Endpoint> endpoint) = 0;
};

struct AcceptorOptions {
  std::string tcp_address;  // "host:port", port 0 picks one; empty: no tcp
  std::string shm_path;     // empty: no shm; a stale socket file is replaced, a live one refused
  // Users whose processes may dial by shm, besides root and our own user. It is asked of the kernel
  // (SO_PEERCRED), before the handshake's MAC, which every peer must give all the same.
  std::vector<uint32_t> shm_allowed_uids;
};

// Listens and runs one progress thread ("luwu-rx") for all links, tcp and shm.
class Acceptor {
 public:
  virtual ~Acceptor() = default;  // closes all links that are still open and joins the thread
  virtual uint16_t tcp_port() const = 0;
  // Stops accepting and disconnects everything; OnDisconnect runs for each link.
  virtual void Shutdown() = 0;
};
StatusOr<std::unique_ptr<Acceptor>> MakeAcceptor(const AcceptorOptions& options,
                                                 SessionAuthority* authority);

}  // namespace luwu::transport
