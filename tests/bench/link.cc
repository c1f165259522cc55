#include "tests/bench/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace luwu::bench {

namespace {
constexpr uint64_t kPollMs = 100;
}

bool NeverStop() { return false; }

Status Link::Send(const Json& message) {
  const std::string text = message.dump();
  const ssize_t sent = send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(text.size())) return OkStatus();
  return Error(ErrorCode::kUnavailable, "cannot send {} bytes to a bench process: {}", text.size(),
               std::strerror(errno));
}

StatusOr<Json> Link::Receive(TimePoint deadline, StopCheck stop) {
  pollfd waiter = {.fd = fd_.get(), .events = POLLIN, .revents = 0};
  while (waiter.revents == 0) {
    const uint64_t left_ms = MillisecondsUntil(deadline);
    if (left_ms == 0) return Error(ErrorCode::kDeadline, "no answer from a bench process in time");
    if (stop()) return Error(ErrorCode::kCancelled, "stopped by a signal");
    if (poll(&waiter, 1, static_cast<int>(std::min(left_ms, kPollMs))) < 0 && errno != EINTR) break;
  }
  // The length first: MSG_TRUNC reports it for a datagram that is only peeked at.
  const ssize_t length = recv(fd_.get(), nullptr, 0, MSG_PEEK | MSG_TRUNC);
  if (length <= 0) return Error(ErrorCode::kUnavailable, "a bench process ended unexpectedly");
  std::string text(static_cast<size_t>(length), '\0');
  if (recv(fd_.get(), text.data(), text.size(), 0) != length) {
    return Error(ErrorCode::kUnavailable, "cannot read from a bench process: {}",
                 std::strerror(errno));
  }
  Json message = Json::parse(text, nullptr, false);
  if (message.is_discarded()) {
    return Error(ErrorCode::kInternal, "a bench process sent text that is not JSON");
  }
  return message;
}

double MonotonicSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace luwu::bench
