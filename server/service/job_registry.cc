#include "server/service/job_registry.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/hmac.h"
#include "common/base/log.h"
#include "server/cluster/lead_reporter.h"

namespace luwu {
namespace {

constexpr uint64_t kFreeWaitMs = 5000;
constexpr uint64_t kFreePollMs = 2;

// Equals Placement::lead() for every job: it depends on the node list only.
uint32_t LeadOf(const std::vector<Node>& nodes) {
  const auto lead =
      std::find_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.weight > 0; });
  LUWU_CHECK(lead != nodes.end(), "a node list is validated before it gets here");
  return static_cast<uint32_t>(lead - nodes.begin());
}

uint64_t RandomEpoch() {
  while (true) {
    if (const uint64_t epoch = RandomU64(); epoch != 0) return epoch;
  }
}

}  // namespace

JobRegistry::JobRegistry(Options options, const Job::Environment& environment, WorkQueue* queue)
    : options_(std::move(options)),
      environment_(environment),
      queue_(queue),
      lead_(LeadOf(options_.nodes)) {}

Status JobRegistry::CheckEpoch(const std::string& name, const Entry& entry, uint64_t epoch) const {
  if (epoch == 0 || epoch == entry.epoch) return OkStatus();
  return Error(ErrorCode::kStaleEpoch,
               "job {} has epoch {:016x} on node {}, the caller's is {:016x}: the job was deleted "
               "and created anew; open it again, or delete it on the nodes that kept the old one",
               name, entry.epoch, node_name(), epoch);
}

StatusOr<uint64_t> JobRegistry::EpochOfNew(const std::string& name, uint64_t epoch) const {
  if (is_lead()) {
    if (epoch == 0) return RandomEpoch();
    return Error(
        ErrorCode::kStaleEpoch,
        "the lead node {} has no job {} of epoch {:016x}: it was deleted or the daemon was "
        "restarted; open the job again",
        node_name(), name, epoch);
  }
  if (epoch != 0) return epoch;
  return Error(ErrorCode::kInvalidArgument,
               "epoch 0 creates a job on its lead node {} only, and this is node {}; ask the lead "
               "first and pass on its epoch",
               lead_node().name, node_name());
}

void JobRegistry::CreateOrJoin(JobSpec spec, uint64_t epoch, JoinCallback done) {
  if (options_.nodes[options_.self].weight == 0) {
    done(Error(ErrorCode::kInvalidArgument,
               "node {} has weight 0: it serves no shards and has no part in job {}", node_name(),
               spec.name));
    return;
  }
  bool inserted = false;
  StatusOr<JoinedJob> joined = JoinedJob{};
  {
    MutexLock lock(mutex_);
    joined = JoinOrInsert(spec, epoch, done, &inserted);
  }
  if (!joined.ok() || joined->job != nullptr) {
    done(std::move(joined));
    return;
  }
  if (inserted && !queue_->Post([this, name = spec.name] { Create(name); })) {
    Abandon(spec.name,
            Error(ErrorCode::kUnavailable, "node {} has too much to do to create job {}; try again",
                  node_name(), spec.name));
  }
}

StatusOr<JoinedJob> JobRegistry::JoinOrInsert(const JobSpec& spec, uint64_t epoch,
                                              JoinCallback& done, bool* inserted) {
  RETURN_IF_ERROR(shutdown_);
  if (const auto found = entries_.find(spec.name); found != entries_.end()) {
    return JoinExisting(found->second, spec, epoch, done);
  }
  if (entries_.size() >= kJobsMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "node {} has {} jobs, the most it takes; delete one first", node_name(), kJobsMax);
  }
  Entry entry;
  ASSIGN_OR_RETURN(entry.epoch, EpochOfNew(spec.name, epoch));
  entry.spec = spec;
  if (is_lead()) {
    entry.coordinator = std::make_shared<CommitCoordinator>(
        CoordinatorOptionsFor(spec, entry.epoch, options_.nodes));
  }
  entry.waiters.push_back(std::move(done));
  entries_.emplace(spec.name, std::move(entry));
  *inserted = true;
  return JoinedJob{};
}

StatusOr<JoinedJob> JobRegistry::JoinExisting(Entry& entry, const JobSpec& spec, uint64_t epoch,
                                              JoinCallback& done) {
  RETURN_IF_ERROR(CheckEpoch(spec.name, entry, epoch));
  if (spec != entry.spec) {
    return Error(ErrorCode::kSchemaMismatch,
                 "job {} exists on node {} with another spec: {}; open it with an equal spec or "
                 "under another name",
                 spec.name, node_name(), DescribeDifference(spec, entry.spec));
  }
  if (entry.job != nullptr) return JoinedJob{.job = entry.job, .created = false};
  if (entry.waiters.size() >= kJoinWaitersMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "{} callers wait already for job {} to be created; try again", kJoinWaitersMax,
                 spec.name);
  }
  entry.waiters.push_back(std::move(done));
  return JoinedJob{};
}

void JobRegistry::Create(const std::string& name) {
  JobSpec spec;
  uint64_t epoch = 0;
  std::shared_ptr<CommitCoordinator> coordinator;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;  // Shutdown was faster
    spec = found->second.spec;
    epoch = found->second.epoch;
    coordinator = found->second.coordinator;
  }
  StatusOr<std::shared_ptr<Job>> job = MakeJob(spec, epoch, std::move(coordinator));
  if (!job.ok()) {
    LogWarning("job_refused", "job={} reason=\"{}\"", name, ToString(job.status()));
    Abandon(name, job.status());
    return;
  }
  std::vector<JoinCallback> waiters;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end()) {
      found->second.job = *job;
      waiters.swap(found->second.waiters);
    }
  }
  if (waiters.empty()) {  // shut down meanwhile; the waiters have been answered
    (*job)->Shutdown(Error(ErrorCode::kUnavailable, "node {} is shutting down", node_name()));
    return;
  }
  for (size_t i = 0; i < waiters.size(); ++i) {
    waiters[i](JoinedJob{.job = *job, .created = i == 0});
  }
}

StatusOr<std::shared_ptr<Job>> JobRegistry::MakeJob(
    const JobSpec& spec, uint64_t epoch, std::shared_ptr<CommitCoordinator> coordinator) const {
  JobOptions job_options;
  job_options.spec = spec;
  job_options.nodes = options_.nodes;
  job_options.self = options_.self;
  job_options.epoch = epoch;
  job_options.lease_ms = options_.lease_ms;
  job_options.heartbeat_ms = options_.heartbeat_ms;
  std::unique_ptr<StepReporter> reporter =
      coordinator != nullptr ? MakeLeadReporter(std::move(coordinator), epoch, options_.self)
                             : options_.peer_reporter(spec.name, epoch);
  return Job::Create(std::move(job_options), environment_, std::move(reporter));
}

void JobRegistry::Abandon(const std::string& name, const Status& why) {
  Entry entry;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    entry = std::move(found->second);
    entries_.erase(found);
  }
  if (entry.coordinator != nullptr) entry.coordinator->Shutdown(why);
  for (JoinCallback& waiter : entry.waiters) waiter(why);
}

StatusOr<std::shared_ptr<Job>> JobRegistry::Find(const std::string& name, uint64_t epoch) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.job == nullptr) {
    return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
  }
  RETURN_IF_ERROR(CheckEpoch(name, found->second, epoch));
  return found->second.job;
}

StatusOr<std::shared_ptr<CommitCoordinator>> JobRegistry::FindCoordinator(const std::string& name,
                                                                          uint64_t epoch) const {
  if (!is_lead()) {
    return Error(ErrorCode::kUnsupported, "node {} decides no steps; the lead is node {}",
                 node_name(), lead_node().name);
  }
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return Error(ErrorCode::kNotFound, "the lead node {} has no job '{}'", node_name(), name);
  }
  RETURN_IF_ERROR(CheckEpoch(name, found->second, epoch));
  return found->second.coordinator;
}

Status JobRegistry::Delete(const std::string& name, uint64_t epoch, bool force) {
  Entry entry;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
    }
    RETURN_IF_ERROR(CheckEpoch(name, found->second, epoch));
    if (found->second.job == nullptr) {
      return Error(ErrorCode::kState, "job {} is being created; delete it when that is done", name);
    }
    if (const uint64_t open = found->second.job->open_sessions(); open > 0 && !force) {
      return Error(ErrorCode::kState,
                   "job {} has {} open sessions; close them first, or force the deletion", name,
                   open);
    }
    entry = std::move(found->second);
    entries_.erase(found);
  }
  const Status why =
      Error(ErrorCode::kStaleEpoch, "job {} was deleted on node {}", name, node_name());
  if (entry.coordinator != nullptr) entry.coordinator->Shutdown(why);
  entry.job->Shutdown(why);
  LogInfo("job_deleted", "job={} epoch={:016x}", name, entry.epoch);
  // Calls in progress still hold the job for a moment; the caller wants the memory to be free.
  const std::weak_ptr<Job> watch = entry.job;
  entry.job.reset();
  // Nobody tells when the last one lets go, so this looks again and again, for a bounded time.
  const TimePoint deadline = DeadlineAfter(kFreeWaitMs);
  MutexLock lock(mutex_);
  while (!watch.expired() && MillisecondsUntil(deadline) > 0) {
    freed_.WaitUntil(mutex_, DeadlineAfter(kFreePollMs));
  }
  return OkStatus();
}

std::vector<std::shared_ptr<Job>> JobRegistry::Jobs() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Job>> jobs;
  for (const auto& [name, entry] : entries_) {
    if (entry.job != nullptr) jobs.push_back(entry.job);
  }
  return jobs;
}

void JobRegistry::Tick(TimePoint now) {
  std::vector<std::shared_ptr<CommitCoordinator>> coordinators;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      if (entry.coordinator != nullptr) coordinators.push_back(entry.coordinator);
    }
  }
  for (const auto& coordinator : coordinators) coordinator->Tick(now);
  for (const std::shared_ptr<Job>& job : Jobs()) job->Tick();
}

void JobRegistry::Shutdown(const Status& why) {
  std::vector<JoinCallback> waiters;
  std::vector<std::shared_ptr<CommitCoordinator>> coordinators;
  std::vector<std::shared_ptr<Job>> jobs;
  {
    MutexLock lock(mutex_);
    shutdown_ = why;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      if (entry->second.coordinator != nullptr) coordinators.push_back(entry->second.coordinator);
      if (entry->second.job != nullptr) {
        jobs.push_back(entry->second.job);
        ++entry;
        continue;
      }
      for (JoinCallback& waiter : entry->second.waiters) waiters.push_back(std::move(waiter));
      entry = entries_.erase(entry);
    }
  }
  for (const auto& coordinator : coordinators) coordinator->Shutdown(why);
  for (const std::shared_ptr<Job>& job : jobs) job->Shutdown(why);
  for (JoinCallback& waiter : waiters) waiter(why);
}

}  // namespace luwu
