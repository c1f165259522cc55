// The jobs of this daemon by name: created once, joined by everyone who asks with an equal spec,
// deleted on request. Creating a job touches all of its memory and can take many seconds, so it
// happens on the control queue and without the registry's lock; whoever asks for the same job in
// the meantime waits for that one creation.
//
// On the lead node each job also has the coordinator that decides its steps.
//
// With a data directory every job has its storage there. What the directory holds at start is known
// here as `recovering`: it is served again when the lead has rolled it back on all nodes
// (docs/DURABILITY.md), or is `lost`, with the reason, until somebody deletes it. The methods that
// roll back are in job_registry_rollback.cc; the RecoveryDriver and PeerService call them.
//
// Owned by the daemon. Thread-safe; callbacks run without the lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "server/cluster/commit_coordinator.h"
#include "server/cluster/recovery_round.h"
#include "server/persist/node_storage.h"
#include "server/service/described_job.h"
#include "server/service/owner.h"
#include "server/service/work_queue.h"
#include "server/step/job.h"

namespace luwu {

inline constexpr size_t kJobsMax = 256;
inline constexpr size_t kJoinWaitersMax = 4096;  // of one job while it is being created

struct JoinedJob {
  std::shared_ptr<Job> job;
  bool created = false;  // by this very call
  uint64_t lineage = 0;  // the job's first epoch
};
struct WantedJob {
  JobSpec spec;
  uint64_t epoch = 0;  // 0: any, on the lead only
  Owner owner = {};    // whose it is when it is created
};
// Of all jobs of an owner.
struct OwnedJobs {
  uint64_t jobs = 0;
  uint64_t memory_bytes = 0;
};
using JoinCallback = std::function<void(StatusOr<JoinedJob>)>;

class JobRegistry {
 public:
  struct Options {
    std::vector<Node> nodes;  // validated
    uint32_t self = 0;
    uint32_t lease_ms = 0;
    uint32_t heartbeat_ms = 0;
    // How a node that is not the lead tells the lead about its steps.
    std::function<std::unique_ptr<StepReporter>(const std::string& job, uint64_t epoch)>
        peer_reporter;
    persist::NodeStorage* storage = nullptr;  // null: nothing is kept; outlives the registry
  };
  // `queue` must be shut down before the registry is destroyed.
  JobRegistry(Options options, const Job::Environment& environment, WorkQueue* queue);
  // The jobs have no part in what they share any more, even where calls still hold them.
  ~JobRegistry();

  // `done` runs once, inside the call or on the control queue.
  // Errors: kInvalidArgument, kSchemaMismatch, kStaleEpoch, kResourceExhausted, and what
  // Job::Create refuses; a failed creation leaves nothing behind.
  void CreateOrJoin(WantedJob wanted, JoinCallback done) LUWU_EXCLUDES(mutex_);

  // Takes in what the storage holds. Once, before anything else.
  void AdoptStored() LUWU_EXCLUDES(mutex_);

  // kNotFound, also while the job is being created; kUnavailable while it is being recovered;
  // kJobFailed when it is lost. `epoch` 0: any; another one is kStaleEpoch.
  StatusOr<std::shared_ptr<Job>> Find(const std::string& name, uint64_t epoch) const
      LUWU_EXCLUDES(mutex_);
  // Also of a job that is recovering or lost. kNotFound, also while it is being created.
  StatusOr<DescribedJob> Describe(const std::string& name) const LUWU_EXCLUDES(mutex_);
  // kUnsupported when this node is not the lead.
  StatusOr<std::shared_ptr<CommitCoordinator>> FindCoordinator(const std::string& name,
                                                               uint64_t epoch) const
      LUWU_EXCLUDES(mutex_);
  // Waits (a short while) until the memory is free again: call it on the control queue. kState
  // while sessions are open, unless `force`. A creation or rollback under way is waited for, a
  // while; kUnavailable: try again. Repeatable: what one attempt has left another one deletes.
  Status Delete(const std::string& name, uint64_t epoch, bool force) LUWU_EXCLUDES(mutex_);

  // ---- going back to a point (job_registry_rollback.cc); all of them may take long -------------
  // Ends the job here and says what is stored of it; it is `recovering` from then on, for `round`.
  // Idempotent. kNotFound, also when the job is another one of that name; kUnsupported without
  // storage; kUnavailable: try again.
  StatusOr<StoredPoints> PrepareRollback(const JobKey& key, uint64_t round) LUWU_EXCLUDES(mutex_);
  // Serves the point under the epoch `round`. Idempotent. kState when another round, or none, was
  // prepared; kUnavailable: try again; kCorrupt and what else storage and Job::Create refuse.
  Status RollBack(const std::string& name, uint64_t round, const persist::Point& target)
      LUWU_EXCLUDES(mutex_);
  // Gives up a job that is recovering.
  void Condemn(const JobKey& key, const std::string& why) LUWU_EXCLUDES(mutex_);
  // A job that was given up is `recovering` again: something has changed that may help it. False
  // when nothing can, or it is not lost.
  bool Reconsider(const std::string& name, const std::string& why) LUWU_EXCLUDES(mutex_);
  // Kept until the job has gone back to a point: a lead that starts again goes on with it.
  // kNotFound when it was deleted.
  Status NoteRestore(const JobKey& key, const std::string& checkpoint) LUWU_EXCLUDES(mutex_);
  // What a recovering job waits for, for status and messages.
  struct Progress {
    std::string what;
    bool moving = false;  // nodes go back now
    bool lacks_memory = false;
  };
  void NoteProgress(const JobKey& key, const Progress& progress) LUWU_EXCLUDES(mutex_);
  // kNotFound when the job was deleted, whatever has its name now.
  Status CheckExists(const JobKey& key) const LUWU_EXCLUDES(mutex_);
  // On the lead: whether a node that knows the job by `epoch` may have it rolled back. kNotFound,
  // kStaleEpoch (another job of that name), kUnsupported, kJobFailed with the reason of a loss.
  Status CheckRecoverable(const std::string& name, uint64_t epoch) const LUWU_EXCLUDES(mutex_);

  // ---- points and checkpoints ------------------------------------------------------------------
  Status MakePoint(const std::string& name, uint64_t epoch, uint64_t step) LUWU_EXCLUDES(mutex_);
  // Also of jobs that are recovering or lost.
  StatusOr<StoredPoints> ListStored(const std::string& name) const LUWU_EXCLUDES(mutex_);
  // Reads all of a checkpoint, if there is one: kCorrupt names the shard that cannot be read.
  Status VerifyCheckpoint(const std::string& name, const std::string& checkpoint) const
      LUWU_EXCLUDES(mutex_);
  // As long as the storage can be read: also of jobs that are recovering or lost. kUnsupported when
  // the node has no storage, or now has other shards than were stored.
  StatusOr<StoredPart> FindStored(const std::string& name) const LUWU_EXCLUDES(mutex_);
  // Idempotent.
  Status KeepCheckpoint(const CheckpointRequest& request) LUWU_EXCLUDES(mutex_);
  Status DropCheckpoint(const std::string& job, const std::string& name) LUWU_EXCLUDES(mutex_);
  // On disk, of whatever phase; 0 without storage.
  uint64_t StoredBytes(const std::string& name) const LUWU_EXCLUDES(mutex_);

  // By identity; jobs that are recovering or lost keep their places.
  std::map<std::string, OwnedJobs> JobsByOwner() const LUWU_EXCLUDES(mutex_);

  std::vector<AbsentJob> AbsentJobs() const LUWU_EXCLUDES(mutex_);
  // For a daemon that stops: every job's open step is a stored point, so that nothing has to be
  // trained again; what cannot be stored by the deadline is logged.
  void StoreOpenSteps(TimePoint deadline) LUWU_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Job>> Jobs() const LUWU_EXCLUDES(mutex_);
  // By the housekeeping thread.
  void Tick(TimePoint now) LUWU_EXCLUDES(mutex_);
  // Ends every job's waits and sessions with `why` and refuses new jobs. The jobs stay readable in
  // memory until the registry is destroyed.
  void Shutdown(const Status& why) LUWU_EXCLUDES(mutex_);

  bool is_lead() const { return options_.self == lead_; }
  uint32_t lead() const { return lead_; }
  bool has_storage() const { return options_.storage != nullptr; }
  // The data directory; empty without one.
  std::string storage_path() const {
    return options_.storage == nullptr ? "" : options_.storage->Snapshot().path;
  }
  const Node& lead_node() const { return options_.nodes[lead_]; }
  const std::vector<Node>& nodes() const { return options_.nodes; }
  uint32_t self() const { return options_.self; }
  const std::string& node_name() const { return options_.nodes[options_.self].name; }

 private:
  struct Entry {
    JobSpec spec;
    uint64_t epoch = 0;
    uint64_t lineage = 0;  // the first epoch
    uint64_t memory_bytes_max = 0;
    std::string owner = {};
    uint64_t first_step = 0;
    JobPhase phase = JobPhase::kCreating;
    std::shared_ptr<CommitCoordinator> coordinator = nullptr;  // on the lead
    std::shared_ptr<Job> job = nullptr;                        // while it is live
    std::vector<JoinCallback> waiters = {};                    // the first one is the creator
    std::shared_ptr<persist::JobStorage> storage = nullptr;
    std::string detail = {};    // of phases kRecovering and kLost
    std::string unusable = {};  // not empty: nothing can be made of what is stored here, and why
    uint64_t round = 0;         // that was prepared last
    bool busy = false;          // a thread prepares it or rolls it back
    bool moving = false;        // its nodes go back
    bool lacks_memory = false;  // what `detail` is about
    std::weak_ptr<Job> former = {};  // ended, but perhaps still used by calls
  };

  // Joins, or adds an entry to be created; null `job` then means that `done` has been kept.
  StatusOr<JoinedJob> JoinOrInsert(const WantedJob& wanted, uint64_t memory_bytes,
                                   JoinCallback& done, bool* inserted) LUWU_REQUIRES(mutex_);
  StatusOr<JoinedJob> JoinExisting(Entry& entry, const JobSpec& spec, uint64_t epoch,
                                   JoinCallback& done) LUWU_REQUIRES(mutex_);
  // job_registry_quota.cc: what the job may take of its owner's memory, should it be created; 0:
  // the owner has no limit, or the job is there.
  StatusOr<uint64_t> GrantMemory(const WantedJob& wanted) LUWU_EXCLUDES(mutex_);
  Status CheckGrant(const WantedJob& wanted, uint64_t memory_bytes) const LUWU_REQUIRES(mutex_);
  uint64_t MemoryOf(const std::string& identity) const LUWU_REQUIRES(mutex_);
  StatusOr<uint64_t> EpochOfNew(const std::string& name, uint64_t epoch) const;
  Status CheckEpoch(const std::string& name, const Entry& entry, uint64_t epoch) const;
  // Why there is no job behind the entry.
  Status WhyAbsent(const std::string& name, const Entry& entry) const;
  Status CheckStorable(const JobSpec& spec) const;
  void Create(const std::string& name) LUWU_EXCLUDES(mutex_);
  // A copy of what a job is made from; never the entry itself, which is behind the lock.
  struct Blueprint {
    JobSpec spec;
    uint64_t epoch = 0;
    std::shared_ptr<CommitCoordinator> coordinator;
    std::shared_ptr<persist::JobStorage> storage;
    std::optional<persist::Point> restore = std::nullopt;
    uint64_t memory_bytes_max = 0;
    std::string owner = {};
  };
  // The storage that a new job gets, when the node has any.
  StatusOr<std::shared_ptr<persist::JobStorage>> MakeStorage(const Blueprint& blueprint);
  StatusOr<std::shared_ptr<Job>> MakeJob(Blueprint blueprint) const;
  Entry AdoptRecord(const persist::JobRecord& record);
  Status AwaitIdle(const std::string& name) LUWU_EXCLUDES(mutex_);
  // Waits a short while for the last user of a job that has been shut down to let go of it.
  bool AwaitFreed(const std::weak_ptr<Job>& job) LUWU_EXCLUDES(mutex_);
  StatusOr<StoredPoints> EndForRollback(const std::string& name) LUWU_EXCLUDES(mutex_);
  StatusOr<Blueprint> BeginRollback(const std::string& name, uint64_t round,
                                    const persist::Point& target, bool* done) LUWU_EXCLUDES(mutex_);
  void EndRollback(const Blueprint& blueprint, const StatusOr<std::shared_ptr<Job>>& job)
      LUWU_EXCLUDES(mutex_);
  StatusOr<std::shared_ptr<persist::JobStorage>> StorageOf(const JobKey& key) const
      LUWU_EXCLUDES(mutex_);
  StatusOr<const Entry*> FindEntry(const JobKey& key) const LUWU_REQUIRES(mutex_);
  // Takes a failed or unwanted entry out and answers everyone who waits for it.
  void Abandon(const std::string& name, const Status& why) LUWU_EXCLUDES(mutex_);

  const Options options_;
  const Job::Environment environment_;
  WorkQueue* const queue_;
  const uint32_t lead_;
  mutable Mutex mutex_;
  CondVar freed_;
  Status shutdown_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, Entry> entries_ LUWU_GUARDED_BY(mutex_);
  std::set<std::string> deleting_ LUWU_GUARDED_BY(mutex_);  // their storage is not gone yet
};

}  // namespace luwu
