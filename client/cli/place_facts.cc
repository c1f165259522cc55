#include "client/cli/place_facts.h"

#include <linux/magic.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/transport/socket.h"

namespace luwu::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConnectMs = 1000;

int TryToListen(const addrinfo& address) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

std::string FileSystemOf(const struct statfs& info) {
  switch (static_cast<unsigned long>(info.f_type)) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
      return "tmpfs";
    case NFS_SUPER_MAGIC:
      return "nfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlay";
    default:
      return "";
  }
}

bool MayWrite(const fs::path& folder) { return ::access(folder.c_str(), W_OK | X_OK) == 0; }

}  // namespace

PortFacts LookAtPort(const std::string& address) {
  PortFacts facts = {.address = address, .unknown = ""};
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    facts.unknown = "it is not of the form host:port";
    return facts;
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &first);
  if (error != 0) {
    facts.unknown = ::gai_strerror(error);
    return facts;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(first, ::freeaddrinfo);
  facts.error = TryToListen(*first);
  if (facts.error == EADDRINUSE) {
    uint16_t port = 0;
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
    facts.holders = PortHolders(port);
  }
  return facts;
}

SocketFacts LookAtSocket(const std::string& path) {
  SocketFacts facts = {.path = path};
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  facts.folder_exists = fs::is_directory(folder, error);
  facts.folder_writable = MayWrite(folder);
  facts.exists = fs::exists(path, error);
  facts.is_socket = fs::is_socket(path, error);
  facts.answers = facts.is_socket && transport::ConnectUnix(path, DeadlineAfter(kConnectMs)).ok();
  return facts;
}

DirectoryFacts LookAtDirectory(const std::string& path, uint64_t budget_bytes) {
  DirectoryFacts facts = {.path = path};
  facts.budget_bytes = budget_bytes;
  std::error_code error;
  facts.exists = fs::exists(path, error);
  facts.is_directory = fs::is_directory(path, error);
  facts.used = facts.is_directory && !fs::is_empty(path, error);
  fs::path nearest = path;
  while (!fs::exists(nearest, error) && nearest.has_relative_path()) {
    nearest = nearest.parent_path();
  }
  facts.nearest = nearest;
  facts.writable = MayWrite(nearest);
  struct statfs info = {};
  if (::statfs(nearest.c_str(), &info) == 0) {
    facts.file_system = FileSystemOf(info);
    facts.free_bytes = static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_bsize);
  }
  return facts;
}

}  // namespace luwu::cli
