// What a job says of itself, to status pages and to whoever plans for it, and where one goes on:
// plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/tensor/job_spec.h"
#include "server/step/step_reporter.h"
#include "server/step/step_times.h"
#include "server/store/served_copies.h"
#include "server/store/state_store.h"

namespace luwu {

enum class JobState : uint8_t { kLoading, kTraining, kFailed };

// Bytes of a job on one node, before anything is allocated.
struct JobFootprint {
  uint64_t state_bytes = 0;   // masters, moments, undo generation
  uint64_t served_bytes = 0;  // weights region
  uint64_t inbox_bytes = 0;   // all workers' inboxes
  uint64_t overflow_bytes = 0;
  uint64_t held_bytes = 0;     // sums kept until the decision, running sums
  uint64_t table_bytes = 0;    // progress of each shard and rank, names
  uint64_t staging_bytes = 0;  // buffers for what comes from disk and goes there
  uint64_t total() const {
    return staging_bytes + state_bytes + served_bytes + inbox_bytes + overflow_bytes + held_bytes +
           table_bytes;
  }
};

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

// Where the state of a job is, and what it costs to have it there.
struct TierSnapshot {
  uint64_t resident_bytes = 0;  // of memory
  uint64_t spilled_bytes = 0;   // of one stored generation of what is not resident
  uint64_t streamed_bytes = 0;  // read in each step, and written again
  uint64_t buffers = 0;
  uint64_t buffer_bytes = 0;  // of each
  SpillCounters spill;
  uint64_t point_written_bytes = 0;  // of resident state, for points
  double last_step_seconds = 0;      // from the first worker's begin to the decision
  double mean_step_seconds = 0;      // StepPace
  uint64_t timed_steps = 0;          // StepPace
  // Served copies that are not all in memory; zeros when they are.
  uint32_t window_slots = 0;
  uint64_t window_slot_bytes = 0;
  uint64_t window_copies = 0;
  uint64_t window_version_bytes = 0;  // of one version of all trainable shards
  WindowCounters window = {};
};

struct JobSnapshot {
  std::string name;
  uint64_t epoch = 0;
  JobState state = JobState::kLoading;
  std::string failure;  // why it is kFailed
  uint64_t current_step = 0;
  Outcome last_outcome = Outcome::kUnspecified;
  uint64_t applied_steps = 0;  // since the job was created or came back on this node
  uint64_t skipped_steps = 0;
  uint64_t clipped_steps = 0;
  StepTimes step_times;
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
  Durability durability = Durability::kMemory;
  uint32_t durable_every = 0;
  std::optional<uint64_t> durable_step;  // of the newest point that all nodes have
  TierSnapshot tiers;
  bool keeps_undo_state = false;
};

// Where a job goes on.
struct StartPoint {
  uint64_t step = 0;
  float loss_scale = 1;
  uint32_t finite_run = 0;  // applied steps in a row, as the loss scale counts them
  std::vector<std::vector<uint64_t>> applied;  // updates, by layer and shard of the whole job
};

}  // namespace luwu
