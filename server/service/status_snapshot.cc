#include "server/service/status_snapshot.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/log.h"

namespace luwu {
namespace {

constexpr double kNearFull = 0.9;

uint64_t HostUnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<Milliseconds>(now).count());
}

// What makes two checks of two looks the same one. Where the summary tells numbers that change, the
// name alone must do.
std::string KeyOf(const StatusCheck& check) {
  for (const char* name :
       {"STEP_STALLED", "MEMORY_NEARFULL", "STORAGE_FULL", "STORAGE_NEARFULL", "JOB_RECOVERING"}) {
    if (check.name == name) return check.name;
  }
  return check.name + check.summary;
}

// A worker that has begun no step yet shows last_step 0, like one that is in step 0.
bool StepIsOpen(const JobSnapshot& job) {
  return job.state == JobState::kTraining &&
         std::any_of(job.workers.begin(), job.workers.end(), [&](const WorkerSnapshot& worker) {
           return worker.last_step == job.current_step &&
                  (job.current_step > 0 || worker.pushed_bytes > 0);
         });
}

uint64_t SignOf(const JobSnapshot& job) {
  uint64_t sign = job.current_step + job.updates + job.duplicates + job.rejected_slots;
  for (const WorkerSnapshot& worker : job.workers) {
    sign += worker.pushed_bytes + worker.last_step + worker.restart_count;
  }
  return sign;
}

void CheckWorkers(const JobSnapshot& job, std::vector<StatusCheck>* checks) {
  for (const WorkerSnapshot& worker : job.workers) {
    if (worker.lease_left_ms > 0) continue;
    checks->push_back(
        {"WORKER_LOST", Severity::kErr,
         fmt::format("job {}: rank {} ({} pid {}) sends no heartbeat; its lease has expired",
                     job.name, worker.rank, worker.host, worker.pid),
         fmt::format("restart rank {}; it takes its place in step {} and the others go on",
                     worker.rank, job.current_step),
         job.name});
  }
}

std::string HintOfStall(const DaemonSnapshot& snapshot) {
  if (snapshot.storage && snapshot.storage->full) {
    return fmt::format("updates wait for space in {} (STORAGE_FULL)", snapshot.storage->path);
  }
  return "look for a worker whose last_step is behind or that holds all its slots";
}

void CheckAbsent(const std::vector<AbsentJob>& jobs, std::vector<StatusCheck>* checks) {
  for (const AbsentJob& job : jobs) {
    if (job.phase == JobPhase::kLost) {
      checks->push_back(
          {"JOB_LOST", Severity::kErr, fmt::format("job {} is lost: {}", job.name, job.detail),
           fmt::format("restore a checkpoint (luwuctl checkpoint list {0}), delete it "
                       "(luwuctl delete {0}), or cure the cause and restart the "
                       "daemon that has it",
                       job.name),
           job.name});
    } else {
      checks->push_back({"JOB_RECOVERING", Severity::kWarn,
                         fmt::format("job {} is recovering: {}", job.name, job.detail),
                         job.lacks_memory
                             ? "raise memory.budget of the node that lacks memory and restart it, "
                               "or delete another job there; workers wait or open it again"
                             : "start every daemon of the cluster; workers wait or open it again",
                         job.name});
    }
  }
}

void CheckStorage(const persist::StorageSnapshot& storage, uint32_t warn_percent,
                  std::vector<StatusCheck>* checks) {
  if (!storage.failed.empty()) {
    checks->push_back({"STORAGE_FAILED", Severity::kErr,
                       fmt::format("{} takes no writes any more: {}", storage.path, storage.failed),
                       "look at the device, then restart this daemon"});
  }
  if (storage.full) {
    checks->push_back(
        {"STORAGE_FULL", Severity::kErr,
         fmt::format("{} writes wait: {}", storage.waiting_writes, *storage.full),
         "delete checkpoints, make space on the file system (remove files when inodes "
         "are what is missing), or raise storage.budget where that is what is full; "
         "training goes on by itself then"});
  }
  // docs/operating/storage.md promised this warning before there was one.
  const double limit = double(storage.budget_bytes) * warn_percent / 100;
  if (storage.budget_bytes > 0 && !storage.full && double(storage.used_bytes) > limit) {
    checks->push_back({"STORAGE_NEARFULL", Severity::kWarn,
                       fmt::format("{} of {} are in use in {}", HumanBytes(storage.used_bytes),
                                   HumanBytes(storage.budget_bytes), storage.path),
                       "delete checkpoints (luwuctl checkpoint list) or jobs, make space, or raise "
                       "storage.budget; updates wait when it is full"});
  }
  if (!storage.damaged.empty()) {
    checks->push_back({"STORAGE_DAMAGED", Severity::kErr,
                       fmt::format("{} damaged pieces in {}, the last: {}", storage.damaged.size(),
                                   storage.path, storage.damaged.back()),
                       "look at the device; the job goes back to a point that can be read"});
  }
}

// A job whose state is on disk takes what there is, by plan: nothing for anybody to do.
void CheckMemory(const DaemonSnapshot& snapshot, std::vector<StatusCheck>* checks) {
  const auto spills = [](const JobSnapshot& job) { return job.tiers.spilled_bytes > 0; };
  if (std::any_of(snapshot.jobs.begin(), snapshot.jobs.end(), spills)) return;
  if (double(snapshot.memory_used_bytes) <= kNearFull * double(snapshot.memory_budget_bytes)) {
    return;
  }
  checks->push_back({"MEMORY_NEARFULL", Severity::kWarn,
                     fmt::format("{} of {} are in use", HumanBytes(snapshot.memory_used_bytes),
                                 HumanBytes(snapshot.memory_budget_bytes)),
                     "before the next job, raise memory.budget or delete one"});
}

}  // namespace

StatusCollector::StatusCollector(Sources sources)
    : sources_(std::move(sources)),
      started_(sources_.clock->Now()),
      started_unix_ms_(sources_.unix_ms ? sources_.unix_ms() : HostUnixMs()) {}

uint64_t StatusCollector::StalledMs(const JobSnapshot& job) const {
  if (!StepIsOpen(job)) return 0;
  MutexLock lock(mutex_);
  const auto found = progress_.find(job.name);
  if (found == progress_.end() || found->second.epoch != job.epoch ||
      found->second.sign != SignOf(job)) {
    return 0;
  }
  const auto still =
      std::chrono::duration_cast<Milliseconds>(sources_.clock->Now() - found->second.since);
  const auto still_ms = static_cast<uint64_t>(std::max<int64_t>(still.count(), 0));
  return still_ms > sources_.lease_ms ? still_ms : 0;
}

std::vector<StatusCheck> StatusCollector::Judge(const DaemonSnapshot& snapshot) const {
  std::vector<StatusCheck> checks;
  for (const JobSnapshot& job : snapshot.jobs) {
    if (job.state == JobState::kFailed) {
      checks.push_back({"JOB_FAILED", Severity::kErr,
                        fmt::format("job {} failed in step {} and accepts no further step: {}",
                                    job.name, job.current_step, job.failure),
                        "go back to a checkpoint if there is one; else read the masters if you "
                        "need them, delete the job, and start a new one",
                        job.name});
    }
    CheckWorkers(job, &checks);
    if (const uint64_t stalled_ms = StalledMs(job); stalled_ms > 0) {
      checks.push_back({"STEP_STALLED", Severity::kWarn,
                        fmt::format("job {}: step {} is open and nothing has arrived for {:.1f} s",
                                    job.name, job.current_step, double(stalled_ms) / 1000),
                        HintOfStall(snapshot), job.name});
    }
  }
  CheckAbsent(snapshot.absent_jobs, &checks);
  if (snapshot.storage) {
    CheckStorage(*snapshot.storage, sources_.storage_warn_percent, &checks);
  }
  CheckMemory(snapshot, &checks);
  return checks;
}

DaemonSnapshot StatusCollector::Collect() const {
  DaemonSnapshot snapshot = sources_.constants;
  const auto up = std::chrono::duration_cast<Milliseconds>(sources_.clock->Now() - started_);
  snapshot.uptime_ms = static_cast<uint64_t>(up.count());
  snapshot.started_unix_ms = started_unix_ms_;
  snapshot.taken_unix_ms = sources_.unix_ms ? sources_.unix_ms() : HostUnixMs();
  snapshot.jobs = sources_.jobs();
  if (sources_.absent_jobs) snapshot.absent_jobs = sources_.absent_jobs();
  if (sources_.storage) snapshot.storage = sources_.storage();
  snapshot.memory_used_bytes = sources_.memory_used_bytes();
  if (sources_.identities) snapshot.identities = sources_.identities();
  snapshot.checks = Judge(snapshot);
  FillSince(&snapshot);
  for (const StatusCheck& check : snapshot.checks) {
    snapshot.overall = std::max(snapshot.overall, check.severity);
  }
  return snapshot;
}

void StatusCollector::Observe() {
  const TimePoint now = sources_.clock->Now();
  auto taken = std::make_shared<const DaemonSnapshot>(Collect());
  const DaemonSnapshot& snapshot = *taken;
  std::map<std::string, StatusCheck> present;
  for (const StatusCheck& check : snapshot.checks) present.emplace(KeyOf(check), check);
  MutexLock lock(mutex_);
  std::map<std::string, Progress> progress;
  for (const JobSnapshot& job : snapshot.jobs) {
    Progress next{job.epoch, SignOf(job), now};
    const auto former = progress_.find(job.name);
    if (former != progress_.end() && former->second.epoch == next.epoch &&
        former->second.sign == next.sign && StepIsOpen(job)) {
      next.since = former->second.since;
    }
    progress.emplace(job.name, next);
  }
  progress_ = std::move(progress);
  for (const auto& [key, check] : present) {
    if (!logged_.contains(key)) {
      LogWarning("check_raised", "check={} summary=\"{}\" hint=\"{}\"", check.name, check.summary,
                 check.hint);
    }
  }
  for (const auto& [key, check] : logged_) {
    if (!present.contains(key)) LogInfo("check_cleared", "check={}", check.name);
  }
  logged_ = std::move(present);
  MutexLock latest_lock(latest_mutex_);
  latest_ = std::move(taken);
}

void StatusCollector::FillSince(DaemonSnapshot* snapshot) const {
  MutexLock lock(mutex_);
  for (StatusCheck& check : snapshot->checks) {
    const auto known = logged_.find(KeyOf(check));
    check.since_unix_ms =
        known == logged_.end() ? snapshot->taken_unix_ms : known->second.since_unix_ms;
  }
}

std::shared_ptr<const DaemonSnapshot> StatusCollector::Latest() const {
  MutexLock lock(latest_mutex_);
  return latest_;
}

}  // namespace luwu
