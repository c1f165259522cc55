#include "client/cli/port_holders.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace luwu::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kListening[] = "0A";  // TCP_LISTEN, as /proc/net/tcp writes it

// "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ..."
void AddListeners(const char* table, uint16_t port, std::set<std::string>* sockets) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // the titles
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, skipped, inode;
    words >> slot >> local >> remote >> state >> skipped >> skipped >> skipped >> skipped >>
        skipped >> inode;
    const size_t colon = local.rfind(':');
    if (colon == std::string::npos || state != kListening) continue;
    uint16_t number = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), number, 16);
    if (number == port) sockets->insert("socket:[" + inode + "]");
  }
}

bool HoldsOne(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (sockets.contains(fs::read_symlink(it->path(), gone).string())) return true;
  }
  return false;
}

}  // namespace

std::vector<PortHolder> PortHolders(uint16_t port) {
  std::set<std::string> sockets;
  AddListeners("/proc/net/tcp", port, &sockets);
  AddListeners("/proc/net/tcp6", port, &sockets);
  std::vector<PortHolder> holders;
  if (sockets.empty()) return holders;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    pid_t pid = 0;
    const auto [last, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc() || last != name.data() + name.size()) continue;
    if (!HoldsOne(it->path(), sockets)) continue;
    std::string program;
    std::ifstream comm(it->path() / "comm");
    std::getline(comm, program);
    holders.push_back({pid, program});
  }
  return holders;
}

}  // namespace luwu::cli
