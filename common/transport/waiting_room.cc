#include "common/transport/waiting_room.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/check.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr size_t kPrefixBytes = 8;
constexpr size_t kMappedBytes = 12;  // of ::ffff:a.b.c.d before the IPv4 address

std::string AddressText(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (::inet_ntop(family, address, text.data(), text.size()) == nullptr) return "unknown";
  return text.data();
}

std::string PeerOfV6(in6_addr address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    return AddressText(AF_INET, &address.s6_addr[kMappedBytes]);
  }
  std::fill(std::begin(address.s6_addr) + kPrefixBytes, std::end(address.s6_addr), uint8_t{0});
  return AddressText(AF_INET6, &address) + "/64";
}

}  // namespace

PendingConnection* WaitingRoom::Enter(PendingConnection* connection, const std::string& peer) {
  const Queue& own = peers_[peer];
  const bool peer_full = own.size() >= kWaitingOfPeerMax;
  PendingConnection* leaving = nullptr;
  if (peer_full || seats_.size() >= kWaitingMax) {
    leaving = (peer_full ? own : peers_.at(Fullest())).begin()->second;
  }
  const uint64_t number = next_number_++;
  peers_[peer].emplace(number, connection);
  const bool fresh = seats_.emplace(connection, Seat{peer, number}).second;
  LUWU_CHECK(fresh, "a connection enters once");
  if (leaving != nullptr) Leave(leaving);
  return leaving;
}

void WaitingRoom::Leave(PendingConnection* connection) {
  const auto seat = seats_.find(connection);
  if (seat == seats_.end()) return;
  const auto peer = peers_.find(seat->second.peer);
  peer->second.erase(seat->second.number);
  if (peer->second.empty()) peers_.erase(peer);
  seats_.erase(seat);
}

void WaitingRoom::Clear() {
  peers_.clear();
  seats_.clear();
}

const std::string& WaitingRoom::Fullest() const {
  const auto fuller = [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  };
  return std::max_element(peers_.begin(), peers_.end(), fuller)->first;
}

std::string PeerName(int socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof storage;
  if (::getpeername(socket, static_cast<sockaddr*>(static_cast<void*>(&storage)), &bytes) != 0) {
    return "gone";
  }
  if (storage.ss_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, &storage, sizeof address);
    return AddressText(AF_INET, &address.sin_addr);
  }
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 address;
    std::memcpy(&address, &storage, sizeof address);
    return PeerOfV6(address.sin6_addr);
  }
  const StatusOr<uint32_t> uid = PeerUid(socket);
  return uid.ok() ? fmt::format("uid {}", *uid) : "unknown";
}

}  // namespace luwu::transport
