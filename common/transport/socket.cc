#include "common/transport/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace luwu::transport {
namespace {

// Measured: large buffers make loopback slower (they leave the cache); the kernel doubles this.
constexpr int kSocketBufferBytes = 256 * 1024;
constexpr int kUserTimeoutMs = 10'000;
constexpr int kKeepIdleS = 5;
constexpr int kKeepIntervalS = 2;
constexpr int kKeepProbes = 3;
// As far as net.core.somaxconn goes: who finds it full waits a second before the next try.
constexpr int kBacklog = 4096;

struct HostPort {
  std::string host;
  std::string port;
};

StatusOr<HostPort> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort out;
  if (colon != std::string::npos) {
    out = {address.substr(0, colon), address.substr(colon + 1)};
    if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
      out.host = out.host.substr(1, out.host.size() - 2);
    }
  }
  const bool digits = out.port.find_first_not_of("0123456789") == std::string::npos;
  if (out.port.empty() || out.port.size() > 5 || !digits || std::stoul(out.port) > 65535) {
    return Error(ErrorCode::kInvalidArgument,
                 "'{}' is not an address; it must be host:port with a port up to 65535", address);
  }
  return out;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

StatusOr<Addresses> Resolve(const std::string& address, bool passive) {
  ASSIGN_OR_RETURN(const HostPort parts, SplitAddress(address));
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const char* host = parts.host.empty() ? nullptr : parts.host.c_str();
  const int error = ::getaddrinfo(host, parts.port.c_str(), &hints, &found);
  if (error != 0) {
    return Error(ErrorCode::kUnavailable, "cannot resolve '{}': {}", address,
                 ::gai_strerror(error));
  }
  return Addresses(found, &::freeaddrinfo);
}

void SetOption(int fd, int level, int name, int value) {
  // Options only tune; a kernel that refuses one still carries the bytes.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

void SetBuffers(int fd) {
  SetOption(fd, SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes);
  SetOption(fd, SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes);
}

StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return Error(ErrorCode::kResourceExhausted, "cannot make a socket: {}", ErrnoText(errno));
  }
  return fd;
}

Status WaitFor(int fd, int16_t events, TimePoint deadline) {
  while (true) {
    const uint64_t left_ms = MillisecondsUntil(deadline);
    if (left_ms == 0) return Error(ErrorCode::kDeadline, "the peer did not answer in time");
    pollfd poll_fd = {fd, events, 0};
    const int wait_ms = static_cast<int>(std::min<uint64_t>(left_ms, 60'000));
    const int count = ::poll(&poll_fd, 1, wait_ms);
    if (count > 0) return OkStatus();
    if (count < 0 && errno != EINTR) {
      return Error(ErrorCode::kInternal, "poll: {}", ErrnoText(errno));
    }
  }
}

Status Connect(int fd, const sockaddr* address, socklen_t bytes, TimePoint deadline) {
  if (::connect(fd, address, bytes) == 0) return OkStatus();
  // A Unix socket whose backlog is full answers EAGAIN.
  if (errno != EINPROGRESS && errno != EINTR) {
    return Error(ErrorCode::kUnavailable, "{}", ErrnoText(errno));
  }
  RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
  int error = 0;
  socklen_t error_bytes = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) error = errno;
  if (error != 0) return Error(ErrorCode::kUnavailable, "{}", ErrnoText(error));
  return OkStatus();
}

StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error(ErrorCode::kInvalidArgument, "the socket path '{}' must have 1 to {} bytes", path,
                 sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* Generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Makes `path` free to bind.
Status ReplaceStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return Error(ErrorCode::kAlreadyExists, "'{}' exists and is not a socket; remove it", path);
  }
  ASSIGN_OR_RETURN(const UniqueFd probe, NewSocket(AF_UNIX));
  if (::connect(probe.get(), Generic(address), sizeof address) == 0 || errno == EAGAIN) {
    return Error(ErrorCode::kAlreadyExists,
                 "another process listens on '{}'; stop it or choose another path", path);
  }
  if (errno != ECONNREFUSED) {
    return Error(ErrorCode::kPermission, "cannot tell whether '{}' is in use: {}", path,
                 ErrnoText(errno));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Error(ErrorCode::kPermission, "cannot replace the stale socket '{}': {}", path,
                 ErrnoText(errno));
  }
  return OkStatus();
}

uint16_t BoundPort(int fd) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return 0;
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

}  // namespace

std::string ErrnoText(int error) {
  char buffer[128] = {};
  return ::strerror_r(error, buffer, sizeof buffer);
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

StatusOr<TcpListener> ListenTcp(const std::string& address) {
  ASSIGN_OR_RETURN(const Addresses found, Resolve(address, true));
  std::string failure = "no address";
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(entry->ai_family));
    SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    SetBuffers(fd.get());  // before listen, so that accepted sockets scale their windows alike
    if (::bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::listen(fd.get(), kBacklog) == 0) {
      const uint16_t port = BoundPort(fd.get());
      return TcpListener{std::move(fd), port};
    }
    failure = ErrnoText(errno);
  }
  return Error(ErrorCode::kUnavailable,
               "cannot listen on '{}': {}; is another luwud running, or the address not of this "
               "host?",
               address, failure);
}

StatusOr<UniqueFd> ListenUnix(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  RETURN_IF_ERROR(ReplaceStaleSocket(path, address));
  ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(AF_UNIX));
  if (::bind(fd.get(), Generic(address), sizeof address) != 0 || ::chmod(path.c_str(), 0666) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    const char* hint = errno == ENOENT ? "; make its folder, writable for the user of luwud" : "";
    return Error(ErrorCode::kUnavailable, "cannot listen on '{}': {}{}", path, ErrnoText(errno),
                 hint);
  }
  return fd;
}

StatusOr<UniqueFd> ConnectTcp(const std::string& address, TimePoint deadline) {
  ASSIGN_OR_RETURN(const Addresses found, Resolve(address, false));
  Status failure = Error(ErrorCode::kUnavailable, "no address");
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(entry->ai_family));
    SetBuffers(fd.get());
    failure = Connect(fd.get(), entry->ai_addr, entry->ai_addrlen, deadline);
    if (failure.ok()) failure = TuneTcp(fd.get());
    if (failure.ok()) return fd;
  }
  return Annotate(failure, fmt::format("connecting to {}", address));
}

StatusOr<UniqueFd> ConnectUnix(const std::string& path, TimePoint deadline) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(AF_UNIX));
  RETURN_IF_ERROR(Annotate(Connect(fd.get(), Generic(address), sizeof address, deadline),
                           fmt::format("connecting to {}", path)));
  return fd;
}

Status TuneTcp(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  const int timeout_ms = kUserTimeoutMs;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms) != 0) {
    return Error(ErrorCode::kInternal, "setting TCP_USER_TIMEOUT: {}", ErrnoText(errno));
  }
  return OkStatus();
}

StatusOr<uint32_t> PeerUid(int fd) {
  ucred credentials = {};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return Error(ErrorCode::kInternal, "SO_PEERCRED: {}", ErrnoText(errno));
  }
  return credentials.uid;
}

Status WaitReadable(int fd, TimePoint deadline) { return WaitFor(fd, POLLIN, deadline); }

Status SendExact(int fd, ConstByteSpan bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Error(ErrorCode::kUnavailable, "sending: {}", ErrnoText(errno));
    }
  }
  return OkStatus();
}

Status ReceiveExact(int fd, ByteSpan bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t received = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (received > 0) {
      bytes = bytes.subspan(static_cast<size_t>(received));
    } else if (received == 0) {
      return Error(ErrorCode::kUnavailable, "the peer closed the connection");
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return Error(ErrorCode::kUnavailable, "receiving: {}", ErrnoText(errno));
    }
  }
  return OkStatus();
}

}  // namespace luwu::transport
