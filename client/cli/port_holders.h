// Who listens on a tcp port of this host, from /proc. Processes of other users stay unseen unless
// root asks. Any thread; nothing fails: what cannot be read is left out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace luwu::cli {

struct PortHolder {
  pid_t pid = 0;
  std::string program;  // as in /proc/PID/comm
};
std::vector<PortHolder> PortHolders(uint16_t port);

}  // namespace luwu::cli
