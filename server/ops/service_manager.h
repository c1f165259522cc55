// What a service manager is told, by sd_notify(3)'s protocol: datagrams of "NAME=value" lines to
// the socket in $NOTIFY_SOCKET. Without the variable everything here does nothing.
//
// Thread-safe. Sending never blocks: a manager that does not read misses a line.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/unique_fd.h"

namespace luwu {

class ServiceManager {
 public:
  // From the environment, out of which the variables are taken: main thread, before others start.
  static ServiceManager FromEnvironment();

  bool present() const { return socket_.valid(); }
  // Within which it wants to hear WATCHDOG=1 again; 0: it does not.
  uint64_t watchdog_ms() const { return watchdog_ms_; }

  // Lines are joined by '\n'; values have none.
  void Send(const std::string& lines) const;

 private:
  UniqueFd socket_;  // connected
  uint64_t watchdog_ms_ = 0;
};

}  // namespace luwu
