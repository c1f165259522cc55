// The Prometheus page: http://ADDRESS/metrics on a loopback address.
//
// A scrape shows the snapshot that the housekeeping thread took last, at most a second ago. So it
// waits for no lock of the daemon, costs a job nothing, and answers also when the daemon is stuck:
// luwu_snapshot_timestamp_seconds tells. Two threads of the HTTP library serve it, with bounded
// request size, queue and time, whatever clients do.
//
// Start on the main thread, destruction on any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/service/status_snapshot.h"

namespace luwu {

// From any thread; null: nothing is shown.
using SnapshotSource = std::function<std::shared_ptr<const DaemonSnapshot>()>;

class MetricsServer {
 public:
  // `address`: "127.0.0.1:9464", port 0 for any. kUnavailable when it cannot be listened on.
  static StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                        SnapshotSource source);
  // Waits for scrapes in progress, and up to two seconds until the library looks whether to end.
  virtual ~MetricsServer() = default;

  virtual uint16_t port() const = 0;
};

}  // namespace luwu
