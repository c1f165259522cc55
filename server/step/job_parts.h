// The plain parts that JobImpl is made of.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/transport/region.h"
#include "server/session/session.h"
#include "server/step/job.h"
#include "server/step/point_maker.h"
#include "server/step/shard_updater.h"
#include "server/step/slot_table.h"
#include "server/step/step_pace.h"
#include "server/step/step_times.h"
#include "server/store/held_sums.h"
#include "server/store/memory_budget.h"
#include "server/store/overflow_pool.h"
#include "server/store/served_copies.h"
#include "server/store/state_store.h"

namespace luwu {

// At an address of its own, because the parts of JobMemory refer to the spec and the map.
struct JobPlan {
  JobOptions options;
  ShardMap map;
  JobFootprint footprint;
  ResidencyPlan residency;
};

// All memory of a job, reserved, allocated and touched.
struct JobMemory {
  MemoryReservation reservation;
  std::shared_ptr<StorageUse> storage_use;  // null without a storage
  std::unique_ptr<StateStore> store;
  std::unique_ptr<ServedCopies> weights;
  std::unique_ptr<PointMaker> points;
  std::vector<std::shared_ptr<transport::LocalRegion>> inboxes;  // by rank
  std::optional<OverflowPool> overflow;
  std::optional<HeldSums> held;
  std::optional<HeldSums> running;
};

struct JobRank {
  explicit JobRank(uint32_t slot_count) : slots(slot_count) {}
  std::shared_ptr<Session> session;    // the newest, dead or alive; null: never opened
  bool opening = false;                // a new session is being made
  bool closed = false;                 // `session` was closed by its worker, not lost
  std::optional<uint64_t> begun_step;  // by that session
  SlotTable slots;
  std::shared_ptr<transport::LocalRegion> inbox;
};
// The points that the job has made and is making.
struct JobPoints {
  std::optional<uint64_t> begun_step;        // of the last one begun
  std::optional<uint64_t> requested_step;    // of the next step
  std::deque<persist::Point> pending;        // not on all nodes yet
  std::optional<persist::Point> stored;      // the last one stored here
  std::optional<persist::Point> durable;     // ... on all nodes
  std::optional<TimePoint> report_again_at;  // that `stored` is
  uint32_t finite_steps = 0;                 // StepDecision, of the last one
};

struct JobCommitWaiter {
  std::shared_ptr<Session> session;
  uint64_t step = 0;
  TimePoint deadline;
  CommitCallback done;
};
struct JobTaskResult {
  std::optional<NonFiniteNote> note;
  UpdateResult update;
  double seconds = 0;
};
// The arrays of a layer's local shards that a reader looks at.
struct JobLayerPin {
  struct Shard {
    StatePin state;
    uint32_t generation = 0;
    uint64_t served_version = 0;  // whose bytes belong to the state
  };
  uint64_t version = 0;
  bool served = false;  // the served copy is read, too
  std::vector<Shard> shards;
};
// The step that was decided last, for the shards that it has left something to do for.
struct JobSettling {
  uint64_t step = 0;
  float loss_scale = 1;
  std::vector<HyperParameters> groups;
  StepDecision decision;
};
struct JobCounters {
  uint64_t updates = 0;
  uint64_t updated_elements = 0;
  double update_seconds = 0;
  uint64_t duplicates = 0;
  uint64_t rejected_slots = 0;
  uint64_t applied_steps = 0;
  uint64_t skipped_steps = 0;
  uint64_t clipped_steps = 0;
  std::optional<TimePoint> step_begun_at;
  double last_step_seconds = 0;
  StepPace pace;
  StepTimes times;
};

}  // namespace luwu
