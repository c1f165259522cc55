#include "server/service/job_registry.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/hmac.h"
#include "common/base/log.h"
#include "server/cluster/lead_reporter.h"
#include "server/service/stored_job.h"

namespace luwu {
namespace {

constexpr uint64_t kFreeWaitMs = 5000;
constexpr uint64_t kFreePollMs = 2;
constexpr uint64_t kBusyWaitMs = 10'000;

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

JobRegistry::~JobRegistry() {
  const Status why = Error(ErrorCode::kUnavailable, "node {} has stopped", node_name());
  for (const std::shared_ptr<Job>& job : Jobs()) {
    job->Shutdown(why);
    job->Drain();
  }
}

Status JobRegistry::CheckEpoch(const std::string& name, const Entry& entry, uint64_t epoch) const {
  if (epoch == 0 || epoch == entry.epoch) return OkStatus();
  return Error(ErrorCode::kStaleEpoch,
               "job {} has epoch {:016x} on node {}, the caller's is {:016x}: the job was rolled "
               "back, or deleted and created anew; open it again, or delete it on the nodes that "
               "kept the old one",
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

Status JobRegistry::CheckStorable(const JobSpec& spec) const {
  if (options_.storage != nullptr || spec.durable_every == 0) return OkStatus();
  return Error(ErrorCode::kUnsupported,
               "job {} wants durable points (durable_every {}), but node {} has no data directory; "
               "start luwud with --data-dir or [storage] path, or set durable_every to 0",
               spec.name, spec.durable_every, node_name());
}

Status JobRegistry::WhyAbsent(const std::string& name, const Entry& entry) const {
  switch (entry.phase) {
    case JobPhase::kRecovering:
      return Error(ErrorCode::kUnavailable, "job {} is recovering on node {} ({}); try again", name,
                   node_name(), entry.detail);
    case JobPhase::kLost:
      return Error(ErrorCode::kJobFailed,
                   "job {} is lost on node {}: {}; restore a checkpoint of it (luwuctl checkpoint "
                   "list {}), delete it (luwuctl delete {}), or cure the cause and restart the "
                   "daemon that has it",
                   name, node_name(), entry.detail, name, name);
    case JobPhase::kCreating:
    case JobPhase::kLive:
      break;
  }
  return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
}

void JobRegistry::CreateOrJoin(WantedJob wanted, JoinCallback done) {
  const JobSpec& spec = wanted.spec;
  if (options_.nodes[options_.self].weight == 0) {
    done(Error(ErrorCode::kInvalidArgument,
               "node {} has weight 0: it serves no shards and has no part in job {}", node_name(),
               spec.name));
    return;
  }
  if (const Status status = CheckStorable(spec); !status.ok()) {
    done(status);
    return;
  }
  const StatusOr<uint64_t> granted = GrantMemory(wanted);
  if (!granted.ok()) {
    done(granted.status());
    return;
  }
  bool inserted = false;
  StatusOr<JoinedJob> joined = JoinedJob{};
  {
    MutexLock lock(mutex_);
    joined = JoinOrInsert(wanted, *granted, done, &inserted);
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

StatusOr<JoinedJob> JobRegistry::JoinOrInsert(const WantedJob& wanted, uint64_t memory_bytes,
                                              JoinCallback& done, bool* inserted) {
  const JobSpec& spec = wanted.spec;
  RETURN_IF_ERROR(shutdown_);
  if (deleting_.contains(spec.name)) {
    return Error(ErrorCode::kUnavailable, "job {} is being deleted on node {}; try again",
                 spec.name, node_name());
  }
  if (const auto found = entries_.find(spec.name); found != entries_.end()) {
    return JoinExisting(found->second, spec, wanted.epoch, done);
  }
  if (entries_.size() >= kJobsMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "node {} has {} jobs, the most it takes; delete one first", node_name(), kJobsMax);
  }
  RETURN_IF_ERROR(CheckGrant(wanted, memory_bytes));
  Entry entry;
  ASSIGN_OR_RETURN(entry.epoch, EpochOfNew(spec.name, wanted.epoch));
  entry.spec = spec;
  entry.owner = wanted.owner.identity;
  entry.memory_bytes_max = memory_bytes;
  entry.lineage = entry.epoch;
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
  if (entry.phase == JobPhase::kRecovering || entry.phase == JobPhase::kLost) {
    return WhyAbsent(spec.name, entry);
  }
  RETURN_IF_ERROR(CheckEpoch(spec.name, entry, epoch));
  if (spec != entry.spec) {
    return Error(ErrorCode::kSchemaMismatch,
                 "job {} exists on node {} with another spec: {}; open it with an equal spec or "
                 "under another name",
                 spec.name, node_name(), DescribeDifference(spec, entry.spec));
  }
  if (entry.job != nullptr) {
    return JoinedJob{.job = entry.job, .created = false, .lineage = entry.lineage};
  }
  if (entry.waiters.size() >= kJoinWaitersMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "{} callers wait already for job {} to be created; try again", kJoinWaitersMax,
                 spec.name);
  }
  entry.waiters.push_back(std::move(done));
  return JoinedJob{};
}

StatusOr<std::shared_ptr<persist::JobStorage>> JobRegistry::MakeStorage(
    const Blueprint& blueprint) {
  if (options_.storage == nullptr) return std::shared_ptr<persist::JobStorage>();
  const JobSpec& spec = blueprint.spec;
  const Job::Needs needs = Job::NeedsOf(spec, options_.nodes, options_.self, environment_,
                                        {.memory_bytes_max = blueprint.memory_bytes_max});
  return options_.storage->CreateJob(
      {.name = spec.name,
       .epoch = blueprint.epoch,
       .spec = SerializeStoredJob({.spec = spec,
                                   .lineage = blueprint.epoch,
                                   .memory_bytes = needs.memory_bytes,
                                   .owner = blueprint.owner}),
       .nodes_fingerprint = PlacementFingerprint(options_.nodes)},
      needs.stored_bytes);
}

void JobRegistry::Create(const std::string& name) {
  Blueprint blueprint;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;  // Shutdown was faster
    blueprint.spec = found->second.spec;
    blueprint.epoch = found->second.epoch;
    blueprint.coordinator = found->second.coordinator;
    blueprint.memory_bytes_max = found->second.memory_bytes_max;
    blueprint.owner = found->second.owner;
  }
  StatusOr<std::shared_ptr<persist::JobStorage>> storage = MakeStorage(blueprint);
  StatusOr<std::shared_ptr<Job>> job = std::shared_ptr<Job>();
  if (!storage.ok()) {
    job = storage.status();
  } else {
    blueprint.storage = *storage;
    job = MakeJob(blueprint);
  }
  if (!job.ok()) {
    LogWarning("job_refused", "job={} reason=\"{}\"", name, ToString(job.status()));
    if (storage.ok() && *storage != nullptr) {
      blueprint.storage.reset();
      storage->reset();
      const Status deleted = options_.storage->DeleteJob(name);
      if (!deleted.ok()) LogWarning("storage_left", "job={} why=\"{}\"", name, ToString(deleted));
    }
    Abandon(name, job.status());
    return;
  }
  std::vector<JoinCallback> waiters;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end()) {
      found->second.job = *job;
      found->second.storage = blueprint.storage;
      found->second.memory_bytes_max = (*job)->Snapshot().footprint.total();
      found->second.phase = JobPhase::kLive;
      waiters.swap(found->second.waiters);
    }
  }
  if (waiters.empty()) {  // shut down meanwhile; the waiters have been answered
    (*job)->Shutdown(Error(ErrorCode::kUnavailable, "node {} is shutting down", node_name()));
    return;
  }
  for (size_t i = 0; i < waiters.size(); ++i) {
    waiters[i](JoinedJob{.job = *job, .created = i == 0, .lineage = blueprint.epoch});
  }
}

StatusOr<std::shared_ptr<Job>> JobRegistry::MakeJob(Blueprint blueprint) const {
  JobOptions job_options;
  job_options.nodes = options_.nodes;
  job_options.self = options_.self;
  job_options.epoch = blueprint.epoch;
  job_options.lease_ms = options_.lease_ms;
  job_options.heartbeat_ms = options_.heartbeat_ms;
  job_options.storage = std::move(blueprint.storage);
  job_options.restore = blueprint.restore;
  job_options.memory_bytes_max = blueprint.memory_bytes_max;
  std::unique_ptr<StepReporter> reporter =
      blueprint.coordinator != nullptr
          ? MakeLeadReporter(std::move(blueprint.coordinator), blueprint.epoch, options_.self)
          : options_.peer_reporter(blueprint.spec.name, blueprint.epoch);
  job_options.spec = std::move(blueprint.spec);
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
  if (found == entries_.end()) {
    return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
  }
  if (found->second.job == nullptr) return WhyAbsent(name, found->second);
  RETURN_IF_ERROR(CheckEpoch(name, found->second, epoch));
  return found->second.job;
}

StatusOr<DescribedJob> JobRegistry::Describe(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
  }
  const Entry& entry = found->second;
  if (entry.phase == JobPhase::kCreating) return WhyAbsent(name, entry);
  return DescribedJob{.spec = entry.spec,
                      .epoch = entry.epoch,
                      .lineage = entry.lineage,
                      .first_step = entry.first_step,
                      .phase = entry.phase,
                      .detail = entry.detail};
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
  if (found->second.phase == JobPhase::kRecovering) return WhyAbsent(name, found->second);
  RETURN_IF_ERROR(CheckEpoch(name, found->second, epoch));
  if (found->second.coordinator == nullptr) return WhyAbsent(name, found->second);
  return found->second.coordinator;
}

// Who creates or rolls back a job holds its memory and its storage, so there is nothing to take
// away before that has ended.
Status JobRegistry::AwaitIdle(const std::string& name) {
  const TimePoint deadline = DeadlineAfter(kBusyWaitMs);
  MutexLock lock(mutex_);
  while (true) {
    const auto found = entries_.find(name);
    const bool busy = found != entries_.end() &&
                      (found->second.phase == JobPhase::kCreating || found->second.busy);
    if (!busy) return OkStatus();
    if (MillisecondsUntil(deadline) == 0) {
      return Error(ErrorCode::kUnavailable,
                   "job {} is being created or rolled back on node {}; delete it again when that "
                   "is done",
                   name, node_name());
    }
    freed_.WaitUntil(mutex_, DeadlineAfter(kFreePollMs));
  }
}

Status JobRegistry::Delete(const std::string& name, uint64_t epoch, bool force) {
  RETURN_IF_ERROR(AwaitIdle(name));
  Entry entry;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
    }
    RETURN_IF_ERROR(CheckEpoch(name, found->second, epoch));
    if (found->second.phase == JobPhase::kCreating || found->second.busy) {
      return Error(ErrorCode::kUnavailable,
                   "job {} is being created or rolled back on node {}; delete it again when that "
                   "is done",
                   name, node_name());
    }
    const std::shared_ptr<Job>& job = found->second.job;
    if (const uint64_t open = job == nullptr ? 0 : job->open_sessions(); open > 0 && !force) {
      return Error(ErrorCode::kState,
                   "job {} has {} open sessions; close them first, wait for the lease of a dead "
                   "worker ({} ms), or add --force",
                   name, open, options_.lease_ms);
    }
    entry = std::move(found->second);
    entries_.erase(found);
    if (entry.storage != nullptr) deleting_.insert(name);
  }
  const Status why =
      Error(ErrorCode::kStaleEpoch, "job {} was deleted on node {}", name, node_name());
  if (entry.coordinator != nullptr) entry.coordinator->Shutdown(why);
  if (entry.job != nullptr) {
    entry.job->Shutdown(why);
    entry.job->Drain();
  }
  LogInfo("job_deleted", "job={} epoch={:016x}", name, entry.epoch);
  // Calls in progress still hold the job for a moment; the caller wants the memory to be free.
  const std::weak_ptr<Job> watch = entry.job;
  entry.job.reset();
  AwaitFreed(watch);
  if (entry.storage == nullptr) return OkStatus();
  entry.storage.reset();
  const Status deleted = options_.storage->DeleteJob(name);
  MutexLock lock(mutex_);
  deleting_.erase(name);
  return deleted;
}

bool JobRegistry::AwaitFreed(const std::weak_ptr<Job>& job) {
  // Nobody tells when the last one lets go, so this looks again and again, for a bounded time.
  const TimePoint deadline = DeadlineAfter(kFreeWaitMs);
  MutexLock lock(mutex_);
  while (!job.expired() && MillisecondsUntil(deadline) > 0) {
    freed_.WaitUntil(mutex_, DeadlineAfter(kFreePollMs));
  }
  return job.expired();
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
