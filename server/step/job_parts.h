// The plain parts that JobImpl is made of.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/transport/region.h"
#include "server/session/session.h"
#include "server/step/job.h"
#include "server/step/shard_updater.h"
#include "server/store/held_sums.h"
#include "server/store/memory_budget.h"
#include "server/store/overflow_pool.h"
#include "server/store/served_weights.h"
#include "server/store/state_store.h"

namespace luwu {

// All memory of a job, reserved, allocated and touched.
struct JobMemory {
  MemoryReservation reservation;
  std::unique_ptr<StateStore> store;
  std::unique_ptr<ServedWeights> weights;
  std::vector<std::shared_ptr<transport::LocalRegion>> inboxes;  // by rank
  std::optional<OverflowPool> overflow;
  std::optional<HeldSums> held;
  std::optional<HeldSums> running;
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
    optim::StateArrays state;
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
  uint64_t skipped_steps = 0;
  uint64_t clipped_steps = 0;
};

}  // namespace luwu
