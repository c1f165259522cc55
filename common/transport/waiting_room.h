// The connections that have not proved themselves yet, by peer: how many there may be, and which of
// them gives way when there are more.
//
// A newcomer is always let in. Beyond a bound the connection goes that has waited longest: of the
// newcomer's own peer when that has too many, else of the peer that has most. Whoever knows a
// session's secret needs milliseconds, so a flood pushes out itself and nobody else.
//
// Acceptor, on its progress thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

namespace luwu::transport {

class PendingConnection;

class WaitingRoom {
 public:
  static constexpr size_t kWaitingMax = 1024;
  // A host with sixteen trainers of sixteen connections each may dial all at once.
  static constexpr size_t kWaitingOfPeerMax = 256;

  // `peer` as PeerName says. Returns who must give way, null when there is room; it is out already.
  PendingConnection* Enter(PendingConnection* connection, const std::string& peer);
  // Of one that is not in: nothing happens.
  void Leave(PendingConnection* connection);
  void Clear();
  size_t size() const { return seats_.size(); }

 private:
  using Queue = std::map<uint64_t, PendingConnection*>;  // the oldest first
  struct Seat {
    std::string peer;
    uint64_t number = 0;
  };

  const std::string& Fullest() const;

  uint64_t next_number_ = 0;
  std::unordered_map<std::string, Queue> peers_;
  std::unordered_map<PendingConnection*, Seat> seats_;
};

// Who is at the other end of an accepted socket, before it has said anything: an IPv4 address, the
// first 64 bits of an IPv6 address (one host may have all the rest), or a user of this host.
std::string PeerName(int socket);

}  // namespace luwu::transport
