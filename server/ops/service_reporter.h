// Keeps the service manager informed of the daemon's phase, and feeds its watchdog:
//
//   starting -> recovering -> ready -> stopping
//
// READY is said when the daemon serves and has done what it can for the jobs in its data directory:
// those that wait for other nodes do not hold it up (they would hold up each other's start), and
// are named in the status line. While the daemon starts, recovers or stops, the manager's patience
// is extended, for at most an hour without any change of what is going on. The watchdog is fed as
// long as no loop of the process is stuck (common/base/liveness.h).
//
// One thread, "luwu-notify", unless there is no manager. The methods are for the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/ops/service_manager.h"

namespace luwu {

struct ServiceView {
  std::string text;      // one line
  bool pending = false;  // jobs that were found on disk are not served yet
  bool working = false;  // and this node is at work on one
};

class ServiceReporter {
 public:
  explicit ServiceReporter(ServiceManager manager);
  ~ServiceReporter();
  ServiceReporter(const ServiceReporter&) = delete;
  ServiceReporter& operator=(const ServiceReporter&) = delete;

  // The daemon serves. `look` is called on the thread until Stopping has returned.
  void Serving(std::function<ServiceView()> look) LUWU_EXCLUDES(mutex_);
  void Reloading() LUWU_EXCLUDES(mutex_);
  void Reloaded() LUWU_EXCLUDES(mutex_);
  void Stopping(const std::string& why) LUWU_EXCLUDES(mutex_);

 private:
  void Run() LUWU_EXCLUDES(mutex_);
  std::string Describe(TimePoint now) LUWU_REQUIRES(mutex_);
  bool MayFeed(TimePoint now);

  const ServiceManager manager_;
  std::thread thread_;
  bool told_stuck_ = false;  // the thread's own

  Mutex mutex_;
  CondVar wake_;
  bool ending_ LUWU_GUARDED_BY(mutex_) = false;
  std::function<ServiceView()> look_ LUWU_GUARDED_BY(mutex_);
  bool ready_ LUWU_GUARDED_BY(mutex_) = false;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::string text_ LUWU_GUARDED_BY(mutex_);       // what the manager shows
  TimePoint text_since_ LUWU_GUARDED_BY(mutex_);   // it is the same
  TimePoint busy_last_ LUWU_GUARDED_BY(mutex_);    // at work then
  TimePoint extended_at_ LUWU_GUARDED_BY(mutex_);  // the manager's patience
};

}  // namespace luwu
