// What a job knows of one of its local shards, and the task that carries the shard through the
// update pool. A shard is in one activity at a time. The fields marked "task" are set under the
// job's lock before the task is submitted and belong to it until it ends; everything else is
// guarded by the job's lock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/step/shard_progress.h"
#include "server/step/shard_updater.h"
#include "server/step/update_pool.h"

namespace luwu {

class JobImpl;

struct JobShard final : UpdatePool::Task {
  enum class Activity : uint8_t {
    kIdle,
    kFold,    // an in-order prefix goes into the running sum
    kCopy,    // one early contribution goes from its slot to an overflow block
    kHold,    // all ranks have closed: the sum is held, its norm taken
    kUpdate,  // sum, optimizer, served copy
    kCarry,   // the served bytes of this version become those of the next
  };
  // What the decision about the former step has left to do. Until it is done the shard has that
  // step's version, and nothing of the open step is summed into its held buffer.
  enum class Settle : uint8_t { kNone, kUpdate, kCarry };

  JobShard(JobImpl* owner, uint32_t local_index, bool is_trainable, uint32_t world_size)
      : job(owner), index(local_index), trainable(is_trainable), progress(world_size) {
    taken.reserve(world_size);
    sources.reserve(world_size);
  }
  void Run() override;
  using UpdatePool::Task::set_home;

  JobImpl* const job;
  const uint32_t index;
  const bool trainable;

  ShardProgress progress;
  Activity activity = Activity::kIdle;
  Settle settle = Settle::kNone;
  bool ready = false;                 // for the decision about the open step
  bool absent = false;                // ... and no rank had a gradient
  bool ahead = false;                 // its resident state was updated in place in the open step
  bool awaits_reader = false;         // who holds what the shard's next task writes
  bool awaits_state = false;          // which the shard's next task needs and is not in memory
  uint64_t applied = 0;               // updates in all
  uint32_t next_crc32c = 0;           // of the served bytes of the coming version
  std::optional<uint32_t> sum_block;  // overflow block of the running sum
  bool sum_in_own = false;            // ... is in the shard's own buffer
  std::optional<NonFiniteNote> sum_note;
  uint64_t flips = 0;                    // parity: which generation is current
  std::array<uint32_t, 2> readers = {};  // by generation
  // Of masters that lie in the served copy, by parity of its version.
  std::array<uint32_t, 2> served_readers = {};

  bool has_sum() const { return sum_block || sum_in_own; }

  // task
  uint64_t step = 0;
  std::vector<Contribution> taken;
  std::vector<ShardSource> sources;
  float* sum = nullptr;
  bool sum_is_new = false;
  std::span<const HyperParameters> groups;
  float loss_scale = 1;
  const StepDecision* decision = nullptr;  // of the step that is settled; null: not decided yet
  std::vector<UnitSum> squares;            // of this shard's gradients, by clip unit
  std::byte* copy_target = nullptr;

  // Loading: written ranges [first, end), ascending, apart from each other.
  std::vector<std::pair<uint64_t, uint64_t>> loaded;
  bool load_dirty = true;     // the served copy does not show the masters yet
  bool state_loaded = false;  // ... and moments were loaded
};

}  // namespace luwu
