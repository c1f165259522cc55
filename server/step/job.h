// One job on this node: its shards, its step state machine, its workers. Everything the services
// and the data plane do to a job goes through here.
//
// Life of a step s on a node:  every rank begins it (equal hyper-parameters) -> slots arrive and
// are ordered per shard -> a shard whose ranks have all closed gets ready: it is updated (out of
// place when the job keeps undo state), or its sum is held -> when all shards are ready the
// findings go to the StepReporter -> the decision opens step s + 1 and answers the waiters of
// commit(s) -> each shard is settled: its new generation is flipped in, or it is updated from its
// held sum, or the old version is carried over -> version s + 1 of the shard is published on every
// board.
//
// Threads: every public method may be called from any thread. Callbacks run without the job's
// lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "common/wire/shard_map.h"
#include "server/session/worker_identity.h"
#include "server/step/step_reporter.h"

namespace luwu {

class MemoryBudget;  // server/store/memory_budget.h: bytes reserved and released, never exceeded
class UpdatePool;    // server/step/update_pool.h: the threads of the update step
class Session;       // server/session/session.h: one worker's link, inbox and board
class SessionTable;  // server/session/session_table.h: the daemon's sessions by id

struct CommitResult {
  Outcome outcome = Outcome::kUnspecified;
  std::string culprit;
  double grad_norm = 0;       // StepDecision
  double clip_factor = 1;     // with clip scope global
  float next_loss_scale = 1;  // StepDecision
};
using CommitCallback = std::function<void(StatusOr<CommitResult>)>;

struct BegunStep {
  float loss_scale = 1;  // what the step's loss is to be multiplied with
};

enum class Quantity : uint8_t { kMaster = 1, kMoment1 = 2, kMoment2 = 3, kMoment3 = 4 };

enum class JobState : uint8_t { kLoading, kTraining, kFailed };

// Bytes of a job on one node, before anything is allocated.
struct JobFootprint {
  uint64_t state_bytes = 0;   // masters, moments, undo generation
  uint64_t served_bytes = 0;  // weights region
  uint64_t inbox_bytes = 0;   // all workers' inboxes
  uint64_t overflow_bytes = 0;
  uint64_t held_bytes = 0;   // sums kept until the decision, running sums
  uint64_t table_bytes = 0;  // progress of each shard and rank, names
  uint64_t total() const {
    return state_bytes + served_bytes + inbox_bytes + overflow_bytes + held_bytes + table_bytes;
  }
};
JobFootprint FootprintOf(const JobSpec& spec, const ShardMap& map);

struct WorkerSnapshot {
  uint32_t rank = 0;
  std::string host;
  uint32_t pid = 0;
  uint64_t restart_count = 0;
  std::string transport;
  uint64_t lease_left_ms = 0;
  uint64_t last_step = 0;
  uint64_t fetched_bytes = 0;
  uint64_t pushed_bytes = 0;
  uint64_t slots_held = 0;
};

struct JobSnapshot {
  std::string name;
  uint64_t epoch = 0;
  JobState state = JobState::kLoading;
  uint64_t current_step = 0;
  Outcome last_outcome = Outcome::kUnspecified;
  uint64_t skipped_steps = 0;
  uint64_t clipped_steps = 0;
  UpdateMode update_mode = UpdateMode::kUnspecified;
  OptimizerSpec optimizer;
  ClipScope clip_scope = ClipScope::kUnspecified;
  double grad_norm = 0;  // of the last decided step
  float loss_scale = 1;  // of the open step
  uint32_t world_size = 0;
  uint64_t local_elements = 0;
  JobFootprint footprint;
  uint64_t updates = 0;
  uint64_t updated_elements = 0;
  double update_seconds = 0;
  uint64_t duplicates = 0;
  uint64_t rejected_slots = 0;
  uint64_t parked_slots = 0;
  std::vector<WorkerSnapshot> workers;
};

struct JobOptions {
  JobSpec spec;             // validated
  std::vector<Node> nodes;  // validated
  uint32_t self = 0;
  uint64_t epoch = 0;
  uint32_t lease_ms = 15000;
  uint32_t heartbeat_ms = 5000;
};

class Job {
 public:
  // What a job shares with the rest of the daemon; all of it outlives the job.
  struct Environment {
    MemoryBudget* budget = nullptr;
    UpdatePool* pool = nullptr;
    SessionTable* sessions = nullptr;  // the job inserts and erases its sessions itself
    const Clock* clock = nullptr;
  };
  // Reserves the footprint from the budget and allocates and touches it. kResourceExhausted names
  // the job, the node, each part's bytes, and the budget that would do.
  static StatusOr<std::shared_ptr<Job>> Create(JobOptions options, const Environment& environment,
                                               std::unique_ptr<StepReporter> reporter);
  // Call Shutdown first. Not on the data plane's progress thread.
  virtual ~Job() = default;

  virtual const JobSpec& spec() const = 0;
  virtual const ShardMap& shard_map() const = 0;
  virtual uint64_t epoch() const = 0;
  virtual uint64_t current_step() const = 0;
  virtual bool loaded() const = 0;

  // ---- loading -------------------------------------------------------------------------------
  virtual Status Load(uint32_t layer, uint64_t shard, uint64_t offset,
                      std::span<const float> values) = 0;
  virtual Status FinishLoad(bool allow_missing) = 0;
  // Calls `sink` for each local piece of the layer, in order, on the calling thread; a sink error
  // ends the read. Updates that want to write what is read wait until then, so a sink copies and
  // returns. Waits for an update in progress, at most until `deadline` (kDeadline). Values are
  // fp32, whatever the state's format.
  struct Piece {
    uint32_t shard = 0;
    uint64_t offset = 0;
    std::span<const float> values;
    uint64_t version = 0;
  };
  struct ReadPlace {
    uint32_t layer = 0;
    Quantity quantity = Quantity::kMaster;
    uint64_t skip_elements = 0;  // of the local pieces: whole ones that were taken before
  };
  virtual Status Read(const ReadPlace& place, TimePoint deadline,
                      const std::function<Status(const Piece&)>& sink) = 0;

  // ---- sessions ------------------------------------------------------------------------------
  // Opens a session for the identity's rank under the rules of sessions.proto; fences a former
  // holder (its link is closed, its undelivered gradients dropped).
  virtual StatusOr<std::shared_ptr<Session>> OpenSession(const WorkerIdentity& identity) = 0;
  virtual void CloseSession(const std::shared_ptr<Session>& session) = 0;
  virtual uint64_t open_sessions() const = 0;

  // ---- steps ---------------------------------------------------------------------------------
  virtual StatusOr<BegunStep> BeginStep(Session& session, uint64_t step,
                                        const std::vector<HyperParameters>& groups) = 0;
  // `done` runs once: with the result when the step is decided; with
  // kWorkerLost as soon as a rank that has not finished the step has no live session; with
  // kDeadline naming what is open; with kFenced, kJobFailed, kStepMismatch, kNodeLost.
  virtual void AwaitCommit(const std::shared_ptr<Session>& session, uint64_t step,
                           TimePoint deadline, CommitCallback done) = 0;

  // Called every 50 ms or so by the daemon's housekeeping thread: expires leases, ends waits.
  virtual void Tick() = 0;
  // Ends all waits and sessions with `why`; the job refuses everything afterwards.
  virtual void Shutdown(const Status& why) = 0;

  virtual JobSnapshot Snapshot() const = 0;
};

}  // namespace luwu
