// Sockets of the data plane: addresses, listening, connecting, and blocking exchanges with a
// deadline for the dialling side. Any thread. Every failure is a Status that names the address.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::transport {

// "Connection refused", for messages.
std::string ErrnoText(int error);

// Text of a peer with everything but printable ASCII replaced, for messages and logs.
std::string Printable(std::string text);

// `address` is "host:port" or "[v6]:port"; an empty host means any. Port 0 picks one.
struct TcpListener {
  UniqueFd fd;
  uint16_t port = 0;
};
StatusOr<TcpListener> ListenTcp(const std::string& address);

// A socket file that nobody listens on is replaced; a live one, or a file of another kind, is
// refused. Whoever reaches the path may connect; who may speak is decided by the handshake.
StatusOr<UniqueFd> ListenUnix(const std::string& path);

// Non-blocking sockets, connected before `deadline`.
StatusOr<UniqueFd> ConnectTcp(const std::string& address, TimePoint deadline);
StatusOr<UniqueFd> ConnectUnix(const std::string& path, TimePoint deadline);

// For accepted connections: no delay, and a peer that vanished is noticed within 10 s or so.
Status TuneTcp(int fd);

// The user at the other end of a Unix socket.
StatusOr<uint32_t> PeerUid(int fd);

// Wait for the non-blocking `fd`; kDeadline when `deadline` passes first.
Status WaitReadable(int fd, TimePoint deadline);

// All bytes or an error; kUnavailable when the peer closed.
Status SendExact(int fd, ConstByteSpan bytes, TimePoint deadline);
Status ReceiveExact(int fd, ByteSpan bytes, TimePoint deadline);

template <typename T>
ConstByteSpan BytesOf(const T& object) {
  return std::as_bytes(std::span<const T, 1>(&object, 1));
}
template <typename T>
ByteSpan WritableBytesOf(T& object) {
  return std::as_writable_bytes(std::span<T, 1>(&object, 1));
}

}  // namespace luwu::transport
