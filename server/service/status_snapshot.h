// The state of this daemon as one plain struct, and the judgement on it: named checks, each with a
// severity and a hint what to do. Behind the status RPC, luwuctl and the log alike.
//
// A StatusCollector is owned by the daemon. Observe() is called by the housekeeping thread,
// Collect() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/persist/node_storage.h"
#include "server/service/job_registry.h"
#include "server/step/job.h"

namespace luwu {

enum class Severity : uint8_t { kOk = 1, kWarn = 2, kErr = 3 };

struct StatusCheck {
  std::string name;  // "WORKER_LOST"
  Severity severity = Severity::kOk;
  std::string summary;  // what, with its names and numbers
  std::string hint;     // what to do about it
};

struct DaemonSnapshot {
  std::string node;
  std::string version;
  uint32_t pid = 0;
  uint64_t uptime_ms = 0;
  Severity overall = Severity::kOk;
  std::vector<StatusCheck> checks;  // empty: all is well
  uint64_t memory_budget_bytes = 0;
  uint64_t memory_used_bytes = 0;
  std::vector<JobSnapshot> jobs;
  std::vector<AbsentJob> absent_jobs;  // recovering or lost
  std::optional<persist::StorageSnapshot> storage;
  uint32_t update_threads = 0;
  std::string kernel;
};

class StatusCollector {
 public:
  struct Sources {
    DaemonSnapshot constants;  // node, version, pid, memory budget, update threads, kernel
    std::function<std::vector<JobSnapshot>()> jobs;
    std::function<std::vector<AbsentJob>()> absent_jobs = nullptr;
    std::function<persist::StorageSnapshot()> storage = nullptr;  // null without a data directory
    std::function<uint64_t()> memory_used_bytes;
    uint32_t lease_ms = 0;  // how long an open step may show no progress
    const Clock* clock = nullptr;
  };
  explicit StatusCollector(Sources sources);

  DaemonSnapshot Collect() const;
  // Notes which jobs have made progress, and logs each check when it appears and disappears.
  void Observe();

 private:
  // Grows whenever something happens in a step; equal values for long mean that it is stalled.
  struct Progress {
    uint64_t epoch = 0;
    uint64_t sign = 0;
    TimePoint since = {};
  };
  std::vector<StatusCheck> Judge(const DaemonSnapshot& snapshot) const;
  uint64_t StalledMs(const JobSnapshot& job) const;

  const Sources sources_;
  const TimePoint started_;
  mutable Mutex mutex_;
  std::map<std::string, Progress> progress_ LUWU_GUARDED_BY(mutex_);   // by job
  std::map<std::string, StatusCheck> logged_ LUWU_GUARDED_BY(mutex_);  // by name and summary
};

}  // namespace luwu
