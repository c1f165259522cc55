// The jobs of this daemon by name: created once, joined by everyone who asks with an equal spec,
// deleted on request. Creating a job touches all of its memory and can take many seconds, so it
// happens on the control queue and without the registry's lock; whoever asks for the same job in
// the meantime waits for that one creation.
//
// On the lead node each job also has the coordinator that decides its steps.
//
// Owned by the daemon. Thread-safe; callbacks run without the lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "server/cluster/commit_coordinator.h"
#include "server/service/work_queue.h"
#include "server/step/job.h"

namespace luwu {

inline constexpr size_t kJobsMax = 256;
inline constexpr size_t kJoinWaitersMax = 4096;  // of one job while it is being created

struct JoinedJob {
  std::shared_ptr<Job> job;
  bool created = false;  // by this very call
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
  };
  // `queue` must be shut down before the registry is destroyed.
  JobRegistry(Options options, const Job::Environment& environment, WorkQueue* queue);

  // `done` runs once, inside the call or on the control queue. `epoch` 0: any, on the lead only.
  // Errors: kInvalidArgument, kSchemaMismatch, kStaleEpoch, kResourceExhausted, and what
  // Job::Create refuses; a failed creation leaves nothing behind.
  void CreateOrJoin(JobSpec spec, uint64_t epoch, JoinCallback done) LUWU_EXCLUDES(mutex_);

  // kNotFound, also while the job is being created. `epoch` 0: any; another one is kStaleEpoch.
  StatusOr<std::shared_ptr<Job>> Find(const std::string& name, uint64_t epoch) const
      LUWU_EXCLUDES(mutex_);
  // kUnsupported when this node is not the lead.
  StatusOr<std::shared_ptr<CommitCoordinator>> FindCoordinator(const std::string& name,
                                                               uint64_t epoch) const
      LUWU_EXCLUDES(mutex_);
  // Waits (a short while) until the memory is free again: call it on the control queue. kState
  // while sessions are open, unless `force`, and while the job is being created.
  Status Delete(const std::string& name, uint64_t epoch, bool force) LUWU_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<Job>> Jobs() const LUWU_EXCLUDES(mutex_);
  // By the housekeeping thread.
  void Tick(TimePoint now) LUWU_EXCLUDES(mutex_);
  // Ends every job's waits and sessions with `why` and refuses new jobs. The jobs stay readable in
  // memory until the registry is destroyed.
  void Shutdown(const Status& why) LUWU_EXCLUDES(mutex_);

  bool is_lead() const { return options_.self == lead_; }
  const Node& lead_node() const { return options_.nodes[lead_]; }
  const std::vector<Node>& nodes() const { return options_.nodes; }
  uint32_t self() const { return options_.self; }
  const std::string& node_name() const { return options_.nodes[options_.self].name; }

 private:
  struct Entry {
    JobSpec spec;
    uint64_t epoch = 0;
    std::shared_ptr<CommitCoordinator> coordinator;  // on the lead
    std::shared_ptr<Job> job;                        // null while it is being created
    std::vector<JoinCallback> waiters;               // the first one is the creator
  };

  // Joins, or adds an entry to be created; null `job` then means that `done` has been kept.
  StatusOr<JoinedJob> JoinOrInsert(const JobSpec& spec, uint64_t epoch, JoinCallback& done,
                                   bool* inserted) LUWU_REQUIRES(mutex_);
  StatusOr<JoinedJob> JoinExisting(Entry& entry, const JobSpec& spec, uint64_t epoch,
                                   JoinCallback& done) LUWU_REQUIRES(mutex_);
  StatusOr<uint64_t> EpochOfNew(const std::string& name, uint64_t epoch) const;
  Status CheckEpoch(const std::string& name, const Entry& entry, uint64_t epoch) const;
  void Create(const std::string& name) LUWU_EXCLUDES(mutex_);
  StatusOr<std::shared_ptr<Job>> MakeJob(const JobSpec& spec, uint64_t epoch,
                                         std::shared_ptr<CommitCoordinator> coordinator) const;
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
};

}  // namespace luwu
