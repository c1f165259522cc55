// What a data directory holds, and how a job goes back to one of its points on this node.
#include <algorithm>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/service/job_registry.h"
#include "server/service/stored_job.h"
#include "server/store/stored_bytes.h"

namespace luwu {
namespace {

Status Busy(const std::string& name, const std::string& node) {
  return Error(ErrorCode::kUnavailable, "job {} is being rolled back on node {}; try again", name,
               node);
}

}  // namespace

JobRegistry::Entry JobRegistry::AdoptRecord(const persist::JobRecord& record) {
  Entry entry;
  entry.epoch = record.epoch;
  entry.phase = JobPhase::kRecovering;
  entry.detail = "this node has just started";
  const auto lose = [&](const std::string& why) {
    entry.phase = JobPhase::kLost;
    entry.detail = why;
    entry.unusable = why;
  };
  const StatusOr<StoredJob> stored = ParseStoredJob(record.spec);
  if (stored.ok()) {
    entry.spec = stored->spec;
    entry.lineage = stored->lineage;
    entry.memory_bytes_max = stored->memory_bytes;
    entry.owner = stored->owner;
  } else {
    lose(MessageOf(stored.status()));
  }
  if (record.nodes_fingerprint != PlacementFingerprint(options_.nodes)) {
    lose(
        "the names or weights of [[nodes]] are not those that it was created with; start all "
        "daemons with the former list");
  }
  StatusOr<std::shared_ptr<persist::JobStorage>> storage = options_.storage->OpenJob(record.name);
  if (storage.ok()) {
    entry.storage = *std::move(storage);
  } else {
    lose(MessageOf(storage.status()));
  }
  return entry;
}

void JobRegistry::AdoptStored() {
  if (options_.storage == nullptr) return;
  for (const persist::JobRecord& record : options_.storage->Jobs()) {
    Entry entry = AdoptRecord(record);
    const bool recovers = entry.phase == JobPhase::kRecovering;
    // Nothing of it was ever to survive, so it has ended with its daemon.
    if (recovers && entry.spec.durable_every == 0 && entry.storage->Points().empty() &&
        entry.storage->Checkpoints().empty()) {
      entry.storage.reset();
      const Status deleted = options_.storage->DeleteJob(record.name);
      LogInfo("job_ended", "job={} why=\"it had no durable points\" storage=\"{}\"", record.name,
              ToString(deleted));
      if (deleted.ok()) continue;
      entry.phase = JobPhase::kLost;
      entry.detail = MessageOf(deleted);
    }
    LogInfo("job_found", "job={} epoch={:016x} recovers={} why=\"{}\"", record.name, record.epoch,
            entry.phase == JobPhase::kRecovering, entry.detail);
    MutexLock lock(mutex_);
    entries_.emplace(record.name, std::move(entry));
  }
}

StatusOr<const JobRegistry::Entry*> JobRegistry::FindEntry(const JobKey& key) const {
  const auto found = entries_.find(key.name);
  if (found == entries_.end()) {
    return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), key.name);
  }
  // That of a record that cannot be read is not known.
  const uint64_t lineage = found->second.lineage;
  if (key.lineage != 0 && lineage != 0 && lineage != key.lineage) {
    return Error(ErrorCode::kNotFound,
                 "job '{}' of epoch {:016x} was deleted on node {}, which has another job of that "
                 "name",
                 key.name, key.lineage, node_name());
  }
  return &found->second;
}

Status JobRegistry::CheckExists(const JobKey& key) const {
  MutexLock lock(mutex_);
  return FindEntry(key).status();
}

StatusOr<StoredPoints> JobRegistry::PrepareRollback(const JobKey& key, uint64_t round) {
  const std::string& name = key.name;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(shutdown_);
    RETURN_IF_ERROR(FindEntry(key).status());
    Entry& entry = entries_.at(name);
    if (entry.busy || entry.phase == JobPhase::kCreating) return Busy(name, node_name());
    if (entry.storage == nullptr) {
      return Error(ErrorCode::kUnsupported, "job '{}' has no data directory on node {}: {}", name,
                   node_name(), entry.detail.empty() ? "it is in memory only" : entry.detail);
    }
    if (!entry.unusable.empty()) {
      return Error(ErrorCode::kJobFailed, "what node {} has of job '{}' is of no use: {}",
                   node_name(), name, entry.unusable);
    }
    entry.busy = true;
    entry.phase = JobPhase::kRecovering;
    entry.detail = "it is being rolled back";
    entry.round = round;
  }
  return EndForRollback(name);
}

StatusOr<StoredPoints> JobRegistry::EndForRollback(const std::string& name) {
  std::shared_ptr<CommitCoordinator> coordinator;
  std::shared_ptr<Job> job;
  std::weak_ptr<Job> former;
  std::shared_ptr<persist::JobStorage> storage;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return shutdown_;
    coordinator = std::move(found->second.coordinator);
    job = std::move(found->second.job);
    if (job != nullptr) found->second.former = job;
    former = found->second.former;
    storage = found->second.storage;
  }
  const Status why = Error(ErrorCode::kRolledBack,
                           "job '{}' is rolled back to a durable point; open a new session", name);
  if (coordinator != nullptr) coordinator->Shutdown(why);
  if (job != nullptr) {
    LogWarning("job_stopped", "job={} why=\"it is rolled back\"", name);
    job->Shutdown(why);
    job->Drain();
    job.reset();
  }
  const bool freed = AwaitFreed(former);
  StoredPoints stored{.points = storage->Points(), .checkpoints = storage->Checkpoints()};
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return shutdown_;
  found->second.busy = false;
  if (freed) return stored;
  return Error(ErrorCode::kUnavailable, "calls on node {} still use job {}; try again", node_name(),
               name);
}

StatusOr<JobRegistry::Blueprint> JobRegistry::BeginRollback(const std::string& name, uint64_t round,
                                                            const persist::Point& target,
                                                            bool* done) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), name);
  }
  Entry& entry = found->second;
  *done = entry.phase == JobPhase::kLive && entry.epoch == round;
  if (*done) return Blueprint{};
  if (entry.phase != JobPhase::kRecovering || entry.round != round) {
    return Error(ErrorCode::kState,
                 "node {} has not been prepared to roll back job '{}' for {:016x}", node_name(),
                 name, round);
  }
  if (entry.busy || !entry.former.expired()) return Busy(name, node_name());
  entry.busy = true;
  entry.detail = fmt::format("it is going back to step {}", target.step);
  Blueprint blueprint{.spec = entry.spec,
                      .epoch = round,
                      .coordinator = nullptr,
                      .storage = entry.storage,
                      .restore = target,
                      .memory_bytes_max = entry.memory_bytes_max};
  if (is_lead()) {
    CoordinatorOptions options = CoordinatorOptionsFor(entry.spec, round, options_.nodes);
    options.restored = target;
    blueprint.coordinator = std::make_shared<CommitCoordinator>(std::move(options));
  }
  return blueprint;
}

Status JobRegistry::RollBack(const std::string& name, uint64_t round,
                             const persist::Point& target) {
  bool done = false;
  ASSIGN_OR_RETURN(const Blueprint blueprint, BeginRollback(name, round, target, &done));
  if (done) return OkStatus();
  const Status stored = blueprint.storage->RollBack(target, round);
  const StatusOr<std::shared_ptr<Job>> job =
      stored.ok() ? MakeJob(blueprint) : StatusOr<std::shared_ptr<Job>>(stored);
  EndRollback(blueprint, job);
  return job.status();
}

void JobRegistry::EndRollback(const Blueprint& blueprint,
                              const StatusOr<std::shared_ptr<Job>>& job) {
  const std::string& name = blueprint.spec.name;
  bool unwanted = false;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    unwanted = found == entries_.end() || !shutdown_.ok();
    if (found != entries_.end()) {
      Entry& entry = found->second;
      entry.busy = false;
      entry.epoch = blueprint.storage->record().epoch;
      if (!job.ok()) {
        entry.detail = MessageOf(job.status());
        entry.lacks_memory = CodeOf(job.status()) == ErrorCode::kResourceExhausted;
      } else if (!unwanted) {
        entry.job = *job;
        entry.coordinator = blueprint.coordinator;
        entry.phase = JobPhase::kLive;
        entry.moving = false;
        entry.lacks_memory = false;
        entry.first_step = blueprint.restore->step;
        entry.detail.clear();
      }
    }
  }
  if (!job.ok()) {
    LogWarning("rollback_failed", "job={} why=\"{}\"", name, ToString(job.status()));
  } else if (unwanted) {
    (*job)->Shutdown(Error(ErrorCode::kUnavailable, "node {} is shutting down", node_name()));
  } else {
    LogInfo("job_rolled_back", "job={} step={} epoch={:016x}", name, blueprint.restore->step,
            blueprint.epoch);
  }
}

void JobRegistry::Condemn(const JobKey& key, const std::string& why) {
  MutexLock lock(mutex_);
  if (!FindEntry(key).ok()) return;
  Entry& entry = entries_.at(key.name);
  if (entry.phase != JobPhase::kRecovering) return;
  entry.phase = JobPhase::kLost;
  entry.moving = false;
  entry.lacks_memory = false;
  entry.detail = why;
  LogError("job_lost", "job={} why=\"{}\"", key.name, why);
}

bool JobRegistry::Reconsider(const std::string& name, const std::string& why) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.phase != JobPhase::kLost ||
      found->second.storage == nullptr || !found->second.unusable.empty()) {
    return false;
  }
  found->second.phase = JobPhase::kRecovering;
  found->second.detail = why;
  LogInfo("job_reconsidered", "job={} why=\"{}\"", name, why);
  return true;
}

Status JobRegistry::NoteRestore(const JobKey& key, const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const std::shared_ptr<persist::JobStorage> storage, StorageOf(key));
  return storage->NoteRestore(checkpoint);
}

void JobRegistry::NoteProgress(const JobKey& key, const Progress& progress) {
  MutexLock lock(mutex_);
  if (!FindEntry(key).ok()) return;
  Entry& entry = entries_.at(key.name);
  if (entry.phase != JobPhase::kRecovering) return;
  entry.detail = progress.what;
  entry.moving = progress.moving;
  entry.lacks_memory = progress.lacks_memory;
}

Status JobRegistry::CheckRecoverable(const std::string& name, uint64_t epoch) const {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return Error(ErrorCode::kNotFound, "the lead node {} has no job '{}'", node_name(), name);
  }
  const Entry& entry = found->second;
  if (entry.phase == JobPhase::kLost) return WhyAbsent(name, entry);
  if (entry.storage == nullptr) {
    return Error(ErrorCode::kUnsupported, "job '{}' has no data directory on the lead node {}",
                 name, node_name());
  }
  // While it is live here, every node has its epoch: the lead comes last.
  if (entry.phase == JobPhase::kLive) return CheckEpoch(name, entry, epoch);
  return OkStatus();
}

Status JobRegistry::MakePoint(const std::string& name, uint64_t epoch, uint64_t step) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, Find(name, epoch));
  return job->MakePoint(step);
}

void JobRegistry::StoreOpenSteps(TimePoint deadline) {
  for (const std::shared_ptr<Job>& job : Jobs()) {
    const Status stored = job->StoreOpenStep(deadline);
    if (!stored.ok()) {
      LogWarning("last_step_not_stored", "job={} why=\"{}\"", job->spec().name, ToString(stored));
    }
  }
}

StatusOr<std::shared_ptr<persist::JobStorage>> JobRegistry::StorageOf(const JobKey& key) const {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  ASSIGN_OR_RETURN(const Entry* const entry, FindEntry(key));
  if (entry->phase == JobPhase::kCreating) {
    return Error(ErrorCode::kNotFound, "node {} has no job '{}'", node_name(), key.name);
  }
  if (entry->storage == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 "job '{}' has no data directory on node {}; start luwud with --data-dir or "
                 "[storage] path",
                 key.name, node_name());
  }
  return entry->storage;
}

StatusOr<StoredPoints> JobRegistry::ListStored(const std::string& name) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<persist::JobStorage> storage, StorageOf({name}));
  return StoredPoints{.points = storage->Points(), .checkpoints = storage->Checkpoints()};
}

Status JobRegistry::VerifyCheckpoint(const std::string& name, const std::string& checkpoint) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<persist::JobStorage> storage, StorageOf({name}));
  const StatusOr<persist::HeldCheckpoint> held = storage->HoldCheckpoint(checkpoint);
  if (CodeOf(held.status()) == ErrorCode::kNotFound) return OkStatus();
  RETURN_IF_ERROR(held.status());
  uint64_t largest = 0;
  for (const persist::ShardEntry& entry : held->entries) {
    largest = std::max(largest, entry.generation.bytes);
  }
  ASSIGN_OR_RETURN(const Mapping buffer,
                   AllocateHuge(AlignUp(std::max<uint64_t>(largest, 1), persist::kIoAlignment)));
  for (const persist::ShardEntry& entry : held->entries) {
    RETURN_IF_ERROR(StorageOf({name}).status());  // still there
    RETURN_IF_ERROR(ReadStored(*storage, entry, buffer.data()));
  }
  return OkStatus();
}

StatusOr<StoredPart> JobRegistry::FindStored(const std::string& name) const {
  ASSIGN_OR_RETURN(std::shared_ptr<persist::JobStorage> storage, StorageOf({name}));
  const persist::JobRecord record = storage->record();
  if (record.nodes_fingerprint != PlacementFingerprint(options_.nodes)) {
    return Error(ErrorCode::kUnsupported,
                 "what node {} has of job '{}' belongs to another list of [[nodes]]; start all "
                 "daemons with the former list",
                 node_name(), name);
  }
  // Its own, which a job of the same name that is being made cannot change.
  ASSIGN_OR_RETURN(StoredJob stored, ParseStoredJob(record.spec));
  return StoredPart{std::move(stored.spec), record.epoch, std::move(storage)};
}

Status JobRegistry::KeepCheckpoint(const CheckpointRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, Find(request.job, request.epoch));
  ASSIGN_OR_RETURN(const std::shared_ptr<persist::JobStorage> storage, StorageOf({request.job}));
  for (const persist::Checkpoint& kept : storage->Checkpoints()) {
    if (kept.name == request.name && kept.point.step == request.step &&
        kept.created_unix_s == request.created_unix_s) {
      return OkStatus();  // a repeat
    }
  }
  const std::vector<persist::Point> points = storage->Points();
  const auto point = std::find_if(points.begin(), points.end(), [&](const persist::Point& other) {
    return other.step == request.step;
  });
  if (point == points.end()) {
    return Error(ErrorCode::kNotFound, "node {} has no point of step {} of job '{}'", node_name(),
                 request.step, request.job);
  }
  return storage->CreateCheckpoint(
      {.name = request.name, .point = *point, .created_unix_s = request.created_unix_s});
}

Status JobRegistry::DropCheckpoint(const std::string& job, const std::string& name) {
  ASSIGN_OR_RETURN(const std::shared_ptr<persist::JobStorage> storage, StorageOf({job}));
  return storage->DeleteCheckpoint(name);
}

uint64_t JobRegistry::StoredBytes(const std::string& name) const {
  const StatusOr<std::shared_ptr<persist::JobStorage>> storage = StorageOf({name});
  return storage.ok() ? (*storage)->used_bytes() : 0;
}

std::vector<AbsentJob> JobRegistry::AbsentJobs() const {
  MutexLock lock(mutex_);
  std::vector<AbsentJob> absent;
  for (const auto& [name, entry] : entries_) {
    if (entry.phase != JobPhase::kRecovering && entry.phase != JobPhase::kLost) continue;
    absent.push_back(
        {.name = name,
         .epoch = entry.epoch,
         .lineage = entry.lineage,
         .phase = entry.phase,
         .detail = entry.detail,
         .unusable = !entry.unusable.empty(),
         .working = entry.phase == JobPhase::kRecovering && (entry.busy || entry.moving),
         .restoring = entry.storage == nullptr ? "" : entry.storage->record().restoring,
         .lacks_memory = entry.lacks_memory});
  }
  return absent;
}

}  // namespace luwu
