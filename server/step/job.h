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
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "common/wire/shard_map.h"
#include "server/persist/job_storage.h"
#include "server/session/worker_identity.h"
#include "server/step/job_values.h"
#include "server/step/step_reporter.h"
#include "server/store/state_store.h"

namespace luwu {

class MemoryBudget;  // server/store/memory_budget.h: bytes reserved and released, never exceeded
class UpdatePool;    // server/step/update_pool.h: the threads of the update step
class Session;       // server/session/session.h: one worker's link, inbox and board
class SessionTable;  // server/session/session_table.h: the daemon's sessions by id

struct CommitResult {
  Outcome outcome = Outcome::kUnspecified;
  std::string culprit;
  double grad_norm = 0;                         // StepDecision
  double clip_factor = 1;                       // with clip scope global
  float next_loss_scale = 1;                    // StepDecision
  Durability durability = Durability::kMemory;  // reached on all nodes
};
using CommitCallback = std::function<void(StatusOr<CommitResult>)>;

struct BegunStep {
  float loss_scale = 1;  // what the step's loss is to be multiplied with
};

enum class Quantity : uint8_t { kMaster = 1, kMoment1 = 2, kMoment2 = 3, kMoment3 = 4 };

struct JobOptions {
  JobSpec spec;             // validated
  std::vector<Node> nodes;  // validated
  uint32_t self = 0;
  uint64_t epoch = 0;
  uint32_t lease_ms = 15000;
  uint32_t heartbeat_ms = 5000;
  // Where state is spilled and points are made; null: this job needs neither.
  std::shared_ptr<persist::JobStorage> storage = nullptr;
  // The most memory it may take, beside what its spec says; 0: no limit of its own. A job that
  // comes back takes no more than it had, so that all that were there have room again.
  uint64_t memory_bytes_max = 0;
  // The job begins at this point of `storage`, which has been rolled back to it; else it is loaded.
  std::optional<persist::Point> restore = std::nullopt;
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
  // What the job will take of memory, and at most of disk (checkpoints not counted), with the
  // memory that is free now. Zeros when it will be refused; the last is the least that can do.
  struct Needs {
    uint64_t memory_bytes = 0;
    uint64_t stored_bytes = 0;
    uint64_t memory_bytes_least = 0;
  };
  struct Room {
    uint64_t memory_bytes_max = 0;  // 0: what the node has
    bool has_storage = true;        // without it all is in memory, whether it fits or not
  };
  static Needs NeedsOf(const JobSpec& spec, const std::vector<Node>& nodes, uint32_t self,
                       const Environment& environment, const Room& room);
  // Call Shutdown and Drain first. Not on the data plane's progress thread.
  virtual ~Job() = default;

  virtual const JobSpec& spec() const = 0;
  virtual const ShardMap& shard_map() const = 0;
  virtual uint64_t epoch() const = 0;
  virtual uint64_t current_step() const = 0;
  virtual bool loaded() const = 0;
  // Why the job accepts no further step; empty when it does.
  virtual std::string failure() const = 0;

  // ---- loading -------------------------------------------------------------------------------
  virtual Status Load(uint32_t layer, uint64_t shard, uint64_t offset,
                      std::span<const float> values) = 0;
  virtual Status FinishLoad(bool allow_missing) = 0;
  // A moment of a trainable layer, while masters may be loaded: whole blocks of optim::kQuantBlock
  // elements of one tensor's part in the shard.
  struct StatePlace {
    uint32_t layer = 0;
    Quantity quantity = Quantity::kMoment1;
    uint64_t shard = 0;
    uint64_t offset = 0;
  };
  virtual Status LoadState(const StatePlace& place, std::span<const float> values) = 0;
  // As FinishLoad of everything; with moments as they were loaded (zero where none was), and the
  // job goes on at the point's step.
  virtual Status FinishLoadAt(const StartPoint& start) = 0;
  // The open step, and the updates of this node's shards (0 for those of others).
  virtual StartPoint WhereItStands() const = 0;
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

  // Begins to store a point of the step that is open here (or, when `step` is the next one, as soon
  // as that opens); it is complete on all nodes when the StepReporter says so. Nothing to do when
  // that point exists. kStepMismatch for other steps; kState when this node has updated in place
  // what the point would need, or has no storage or weights.
  virtual Status MakePoint(uint64_t step) = 0;
  // For a daemon that stops: MakePoint of the open step, and waits until this node has stored it.
  // Nothing to do for a job without durable points or weights. Also kDeadline.
  virtual Status StoreOpenStep(TimePoint deadline) = 0;
  // The newest point that all nodes have.
  virtual std::optional<persist::Point> durable_point() const = 0;

  // Called every 50 ms or so by the daemon's housekeeping thread: expires leases, ends waits.
  virtual void Tick() = 0;
  // Ends all waits and sessions with `why`; the job refuses everything afterwards.
  virtual void Shutdown(const Status& why) = 0;

  // After Shutdown: waits until the job has nothing to do with its storage any more, however many
  // hold it. Not on a thread of the job's own.
  virtual void Drain() = 0;

  virtual JobSnapshot Snapshot() const = 0;
};

}  // namespace luwu
