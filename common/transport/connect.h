// Making links. The control plane has already given both ends a session id, a session secret and
// each other's region descriptors; here the client dials and the daemon accepts.
//
// A verbs link is negotiated on one tcp connection (verbs/frames.h), which then stays open: its end
// is the end of the link.
//
// Handshake of every connection: the acceptor sends a 32-byte nonce; the dialler answers with
// session id, connection number, its own nonce and HMAC-SHA256(secret, role "client" | nonces |
// ids); the acceptor answers with the MAC under role "daemon". A wrong MAC, an unknown session, a
// handshake of over 5 s or other bytes close it before more is read. Crowds: see waiting_room.h.
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
#include "common/transport/verbs/verbs_options.h"

namespace luwu::transport {

inline constexpr uint32_t kConnectionsMax = 16;
inline constexpr uint32_t kQueuePairsMax = 8;  // of a verbs link

// ---- client -----------------------------------------------------------------------------------

struct DialOptions {
  Kind kind = Kind::kTcp;
  std::string address;  // "host:port" (tcp, verbs) or a socket path (shm)
  uint64_t session_id = 0;
  Secret secret = {};
  ExposedRegions exposed;                  // ours, e.g. the board
  std::vector<RegionDescriptor> expected;  // the peer's
  uint32_t connections = 2;                // tcp; verbs: queue pairs
  TimePoint deadline;
};

// Owns the progress thread that all its endpoints share; destroy the endpoints first.
class Dialler {
 public:
  virtual ~Dialler() = default;
  // `events` must outlive the endpoint. Blocks until connected, failed, or the deadline.
  virtual StatusOr<std::unique_ptr<Endpoint>> Dial(const DialOptions& options,
                                                   LinkEvents* events) = 0;
  // Whether verbs links can be dialled from here: opens the device. An error says why not.
  virtual Status CheckVerbs() = 0;
  // Registers memory with the NIC, so that requests of verbs links use it in place, without a copy
  // through staging memory. It must stay mapped, and no request may be outstanding in it, until the
  // returned handle is dropped. Null where CheckVerbs fails. Any thread; takes long for big memory.
  virtual StatusOr<std::shared_ptr<const void>> Pin(ByteSpan memory) = 0;
};
StatusOr<std::unique_ptr<Dialler>> MakeDialler(const VerbsOptions& verbs = {});

// ---- daemon -----------------------------------------------------------------------------------

// What the acceptor asks its owner about a session that knocks.
struct SessionTerms {
  Secret secret = {};
  ExposedRegions exposed;                  // ours: weights, inbox
  std::vector<RegionDescriptor> expected;  // the client's: board
  uint32_t connections = 1;                // how many tcp connections or queue pairs make it up
  uint64_t domain = 0;                     // verbs: links of different domains share no key space
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
  VerbsOptions verbs = {};  // links over verbs are negotiated on tcp_address
};

// Listens and runs one progress thread ("luwu-rx") for all links. With verbs.use on, making it
// fails where no device is usable.
class Acceptor {
 public:
  virtual ~Acceptor() = default;  // closes all links that are still open and joins the thread
  virtual uint16_t tcp_port() const = 0;
  // Whether verbs links are taken; an error says why not. Any thread.
  virtual Status CheckVerbs() = 0;
  // Registers what a session exposes with the NIC, so that its verbs links come up at once. Takes
  // long for big regions that no session of the domain has brought yet. Not the progress thread.
  virtual Status PrepareVerbs(const SessionTerms& terms) = 0;
  virtual VerbsCounters verbs_counters() const = 0;
  // "rxe0 port 1, ..."; empty when no device is open.
  virtual std::string DescribeVerbs() const = 0;
  // Stops accepting and disconnects everything; OnDisconnect runs for each link.
  virtual void Shutdown() = 0;
};
StatusOr<std::unique_ptr<Acceptor>> MakeAcceptor(const AcceptorOptions& options,
                                                 SessionAuthority* authority);

}  // namespace luwu::transport
