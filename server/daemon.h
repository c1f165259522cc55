// The composition root: the only file that sees all parts of the daemon. Start() makes them in the
// order of their dependencies and listens last; Stop() takes them apart in the reverse order.
//
// Start order:  budget, update threads, session table -> data directory -> data plane listens ->
//               jobs (those on disk, too), status, queues -> metrics page -> control plane listens
//               -> housekeeping
//               -> calls are answered, health SERVING -> jobs on disk are recovered.
// Stop order:   new calls refused -> recovery ends -> every wait answered "shutting down", jobs
//               and sessions ended, links closed -> control plane drained -> queues, housekeeping
//               -> jobs freed -> data directory, data plane. Beside all this the metrics page ends.
//
// Main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/config.h"
#include "server/ops/service_reporter.h"

namespace luwu {

class Daemon {
 public:
  // The error is one line for the operator: what could not be had, and what to do.
  static StatusOr<std::unique_ptr<Daemon>> Start(const DaemonConfig& config);
  virtual ~Daemon() = default;  // Stop()

  // Takes a few seconds at most. `reason` goes to the log. Idempotent.
  virtual void Stop(const std::string& reason) = 0;

  // For the service manager. Any thread, until Stop.
  virtual ServiceView Look() const = 0;

  // As configured, with the ports that were chosen for port 0.
  virtual const DaemonConfig& config() const = 0;
  virtual uint16_t control_port() const = 0;
  virtual uint16_t data_port() const = 0;     // 0: no tcp data plane
  virtual uint16_t metrics_port() const = 0;  // 0: no metrics page
};

}  // namespace luwu
