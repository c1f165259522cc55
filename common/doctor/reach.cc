#include "common/doctor/reach.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "common/base/unique_fd.h"
#include "common/transport/socket.h"

namespace luwu::doctor {
namespace {

struct Attempt {
  size_t address = 0;
  UniqueFd fd;
};

Status Refusal(const std::string& address, int error) {
  return Error(ErrorCode::kUnavailable, "{}: {}", address, transport::ErrnoText(error));
}

// Begins to connect to everything that the name stands for.
Status Begin(const std::string& address, size_t index, std::vector<Attempt>* attempts) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return Error(ErrorCode::kInvalidArgument, "'{}' is not of the form host:port", address);
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &first);
  if (error != 0) {
    return Error(ErrorCode::kUnavailable, "{}: {}", address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(first, ::freeaddrinfo);
  Status status = Refusal(address, EADDRNOTAVAIL);
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    UniqueFd fd(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.valid() &&
        (::connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0 || errno == EINPROGRESS)) {
      attempts->push_back({index, std::move(fd)});
      status = Error(ErrorCode::kDeadline, "{}: no answer in time", address);
    } else if (attempts->empty() || attempts->back().address != index) {
      status = Refusal(address, errno);
    }
  }
  return status;
}

int OutcomeOf(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace

std::vector<Status> Reach(const std::vector<std::string>& addresses, TimePoint deadline) {
  std::vector<Attempt> attempts;
  std::vector<Status> results;
  for (size_t i = 0; i < addresses.size(); ++i) {
    results.push_back(Begin(addresses[i], i, &attempts));
  }
  while (!attempts.empty()) {
    std::vector<pollfd> polled;
    for (const Attempt& attempt : attempts) {
      polled.push_back({.fd = attempt.fd.get(), .events = POLLOUT, .revents = 0});
    }
    const auto wait_ms = std::min<uint64_t>(MillisecondsUntil(deadline), 60'000);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(wait_ms));
    if (ready < 0 && errno != EINTR) break;
    if (ready == 0 && MillisecondsUntil(deadline) == 0) break;
    for (size_t i = polled.size(); ready > 0 && i-- > 0;) {
      if (polled[i].revents == 0) continue;
      const size_t address = attempts[i].address;
      const int error = OutcomeOf(polled[i].fd);
      if (!results[address].ok()) {
        results[address] = error == 0 ? OkStatus() : Refusal(addresses[address], error);
      }
      attempts.erase(attempts.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return results;
}

}  // namespace luwu::doctor
