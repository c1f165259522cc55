#include "server/service/control_probe.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

namespace luwu {
namespace {

// Not waiting for the peer; invalid when there is no descriptor or no such address.
UniqueFd Connect(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return UniqueFd();
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &first) != 0) {
    return UniqueFd();
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(first, ::freeaddrinfo);
  UniqueFd fd(::socket(first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return fd;
  if (::connect(fd.get(), first->ai_addr, first->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return UniqueFd();
  }
  return fd;
}

}  // namespace

bool ControlProbe::IsDead() {
  if (connection_.valid() && !said_) {
    SayHello();
    if (said_) return false;  // the answer is for the next beat
  }
  if (connection_.valid()) {
    char byte = 0;
    const bool greeted = ::recv(connection_.get(), &byte, 1, MSG_DONTWAIT) > 0;
    silent_beats_ = greeted ? 0 : silent_beats_ + 1;
    connection_.Reset();
  }
  if (silent_beats_ >= kSilentBeatsMax) {
    silent_beats_ = 0;
    return true;
  }
  connection_ = Connect(address_);
  said_ = hello_.empty();
  if (connection_.valid() && !said_) SayHello();
  return false;
}

void ControlProbe::SayHello() {
  const ssize_t sent =
      ::send(connection_.get(), hello_.data(), hello_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  said_ = sent == static_cast<ssize_t>(hello_.size());
}

}  // namespace luwu
