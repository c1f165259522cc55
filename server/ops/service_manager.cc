#include "server/ops/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

namespace luwu {
namespace {

// Out of the environment, so that no child takes itself for the service.
std::string Take(const char* name) {
  const char* const text = std::getenv(name);
  std::string value = text == nullptr ? "" : text;
  ::unsetenv(name);
  return value;
}

// "/run/..." or "@abstract"; other kinds are not for this process.
UniqueFd Connect(std::string_view path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const bool usable = path.size() > 1 && path.size() < sizeof(address.sun_path) &&
                      (path[0] == '/' || path[0] == '@');
  if (!usable) return UniqueFd();
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const void* const any = &address;
  const int connected = ::connect(socket.get(), static_cast<const sockaddr*>(any), bytes);
  return connected == 0 ? std::move(socket) : UniqueFd();
}

uint64_t WatchdogMs(const std::string& microseconds, const std::string& pid) {
  if (!pid.empty() && pid != std::to_string(::getpid())) return 0;
  uint64_t us = 0;
  const char* const end = microseconds.data() + microseconds.size();
  const auto [rest, error] = std::from_chars(microseconds.data(), end, us);
  return error == std::errc() && rest == end ? us / 1000 : 0;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.socket_ = Connect(Take("NOTIFY_SOCKET"));
  const std::string us = Take("WATCHDOG_USEC");
  manager.watchdog_ms_ = WatchdogMs(us, Take("WATCHDOG_PID"));
  return manager;
}

void ServiceManager::Send(const std::string& lines) const {
  if (present()) (void)::send(socket_.get(), lines.data(), lines.size(), MSG_NOSIGNAL);
}

}  // namespace luwu
