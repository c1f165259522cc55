// What this host says of the places that a daemon's configuration names: ports, the shared-memory
// socket, the data directory. Facts only; place_checks.h judges them. Binds and connects for a
// moment; changes nothing that stays. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/port_holders.h"
#include "common/base/status.h"

namespace luwu::cli {

struct PortFacts {
  std::string address;
  int error = 0;                         // of binding and listening; 0: it is free
  std::string unknown;                   // not empty: the name cannot be looked up, and why
  std::vector<PortHolder> holders = {};  // who listens there, when it is in use
};
PortFacts LookAtPort(const std::string& address);

struct SocketFacts {
  std::string path;
  bool folder_exists = false;
  bool folder_writable = false;
  bool exists = false;
  bool is_socket = false;
  bool answers = false;  // somebody listens
};
SocketFacts LookAtSocket(const std::string& path);

struct DirectoryFacts {
  std::string path;
  bool exists = false;
  bool is_directory = false;
  bool used = false;             // it has content: what that takes of the budget, the daemon knows
  std::string nearest = {};      // the directory itself, or the nearest one above that exists
  bool writable = false;         // nearest
  std::string file_system = {};  // "tmpfs", "nfs", "overlay"; empty for all others
  uint64_t free_bytes = 0;
  uint64_t budget_bytes = 0;  // 0: what the file system has
};
DirectoryFacts LookAtDirectory(const std::string& path, uint64_t budget_bytes);

}  // namespace luwu::cli
