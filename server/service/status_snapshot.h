// The state of this daemon as one plain struct, and the judgement on it: named checks, each with a
// severity and a hint what to do. Behind the status RPC, luwuctl and the log alike.
// (and, as Observe() left it, behind the metrics page, which must not wait for a lock of the
// daemon).
//
// A StatusCollector is owned by the daemon. Observe() is called by the housekeeping thread,
// Collect() and Latest() from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/persist/node_storage.h"
#include "server/service/identity_use.h"
#include "server/service/job_registry.h"
#include "server/step/job.h"

namespace luwu {

enum class Severity : uint8_t { kOk = 1, kWarn = 2, kErr = 3 };

struct StatusCheck {
  std::string name;  // "WORKER_LOST"
  Severity severity = Severity::kOk;
  std::string summary;         // what, with its names and numbers
  std::string hint;            // what to do about it
  std::string job = {};        // that it is about; empty: none
  uint64_t since_unix_ms = 0;  // when it was first seen
};

// Every check there is; docs/operating tells what each means.
struct CheckName {
  std::string_view name;
  Severity severity = Severity::kOk;
};
constexpr std::array<CheckName, 10> kCheckNames = {{
    {"JOB_FAILED", Severity::kErr},
    {"JOB_LOST", Severity::kErr},
    {"JOB_RECOVERING", Severity::kWarn},
    {"MEMORY_NEARFULL", Severity::kWarn},
    {"STEP_STALLED", Severity::kWarn},
    {"STORAGE_DAMAGED", Severity::kErr},
    {"STORAGE_FAILED", Severity::kErr},
    {"STORAGE_FULL", Severity::kErr},
    {"STORAGE_NEARFULL", Severity::kWarn},
    {"WORKER_LOST", Severity::kErr},
}};

struct DaemonSnapshot {
  std::string node;
  std::string version;
  uint32_t pid = 0;
  uint64_t uptime_ms = 0;
  uint64_t started_unix_ms = 0;
  uint64_t taken_unix_ms = 0;
  Severity overall = Severity::kOk;
  std::vector<StatusCheck> checks;  // empty: all is well
  uint64_t memory_budget_bytes = 0;
  uint64_t memory_used_bytes = 0;
  std::vector<JobSnapshot> jobs;
  std::vector<AbsentJob> absent_jobs;  // recovering or lost
  std::optional<persist::StorageSnapshot> storage;
  uint32_t update_threads = 0;
  std::string kernel;
  std::vector<IdentityUse> identities;  // empty without [tls]
};

class StatusCollector {
 public:
  struct Sources {
    DaemonSnapshot constants;  // node, version, pid, memory budget, update threads, kernel
    std::function<std::vector<JobSnapshot>()> jobs;
    std::function<std::vector<AbsentJob>()> absent_jobs = nullptr;
    std::function<persist::StorageSnapshot()> storage = nullptr;  // null without a data directory
    std::function<uint64_t()> memory_used_bytes;
    std::function<std::vector<IdentityUse>()> identities = nullptr;  // null without [tls]
    uint32_t storage_warn_percent = 85;                              // of its budget
    uint32_t lease_ms = 0;  // how long an open step may show no progress
    const Clock* clock = nullptr;
    std::function<uint64_t()> unix_ms = nullptr;  // null: that of the host
  };
  explicit StatusCollector(Sources sources);

  DaemonSnapshot Collect() const;
  // Notes which jobs have made progress, and logs each check when it appears and disappears.
  void Observe();
  // What Observe() saw last; null before it was called. Waits for nothing but another such call.
  std::shared_ptr<const DaemonSnapshot> Latest() const;

 private:
  // Grows whenever something happens in a step; equal values for long mean that it is stalled.
  struct Progress {
    uint64_t epoch = 0;
    uint64_t sign = 0;
    TimePoint since = {};
  };
  std::vector<StatusCheck> Judge(const DaemonSnapshot& snapshot) const;
  uint64_t StalledMs(const JobSnapshot& job) const;
  void FillSince(DaemonSnapshot* snapshot) const;

  const Sources sources_;
  const TimePoint started_;
  const uint64_t started_unix_ms_;
  mutable Mutex mutex_;
  std::map<std::string, Progress> progress_ LUWU_GUARDED_BY(mutex_);   // by job
  std::map<std::string, StatusCheck> logged_ LUWU_GUARDED_BY(mutex_);  // by name and summary
  mutable Mutex latest_mutex_;  // a leaf; nothing is logged or asked under it
  std::shared_ptr<const DaemonSnapshot> latest_ LUWU_GUARDED_BY(latest_mutex_);
};

}  // namespace luwu
