#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/bench/link.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {
namespace {

constexpr int kAcceptTimeoutMs = 10'000;
constexpr timeval kStallTimeout = {.tv_sec = 60, .tv_usec = 0};

Status SocketError(const char* what) {
  return Error(ErrorCode::kUnavailable, "loopback socket: {}: {}", what, std::strerror(errno));
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Buffer sizes are taken over by accepted sockets, and must be set before a connection exists.
StatusOr<UniqueFd> MakeSocket() {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return SocketError("socket");
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kStallTimeout, sizeof kStallTimeout);
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kStallTimeout, sizeof kStallTimeout);
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

StatusOr<UniqueFd> ListenLoopback(uint16_t* port) {
  ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), generic, length) != 0 || listen(fd.get(), 8) != 0 ||
      getsockname(fd.get(), generic, &length) != 0) {
    return SocketError("listen");
  }
  *port = ntohs(address.sin_port);
  return fd;
}

StatusOr<UniqueFd> AcceptOne(const UniqueFd& listener) {
  pollfd waiter = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  if (poll(&waiter, 1, kAcceptTimeoutMs) != 1) return SocketError("no connection came");
  UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd.get() < 0) return SocketError("accept");
  return fd;
}

StatusOr<UniqueFd> ConnectLoopback(uint16_t port) {
  ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  const sockaddr_in address = Loopback(port);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return SocketError("connect");
  }
  return fd;
}

StatusOr<Interval> SendBytes(const UniqueFd& socket, const Buffers& buffers, uint64_t bytes) {
  Interval interval = {MonotonicSeconds(), 0};
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t offset = done % kBufferBytes;
    const uint64_t piece = std::min({kPieceBytes, kBufferBytes - offset, bytes - done});
    const ssize_t sent = send(socket.get(), buffers.source.data() + offset, piece, MSG_NOSIGNAL);
    if (sent <= 0) return SocketError("send");
    done += static_cast<uint64_t>(sent);
  }
  interval.end = MonotonicSeconds();
  return interval;
}

StatusOr<Interval> ReceiveBytes(const UniqueFd& socket, Buffers* buffers, uint64_t bytes) {
  Interval interval = {MonotonicSeconds(), 0};
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t offset = done % kBufferBytes;
    const uint64_t piece = std::min({kPieceBytes, kBufferBytes - offset, bytes - done});
    const ssize_t got = recv(socket.get(), buffers->target.data() + offset, piece, 0);
    if (got <= 0) return SocketError("receive");
    done += static_cast<uint64_t>(got);
  }
  interval.end = MonotonicSeconds();
  return interval;
}

}  // namespace luwu::bench
