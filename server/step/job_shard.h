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
    kUpdate,  // all ranks have closed: sum, optimizer, served copy
    kCarry,   // the served bytes of this version become those of the next
  };

  JobShard(JobImpl* owner, uint32_t local_index, bool is_trainable, uint32_t world_size)
      : job(owner), index(local_index), trainable(is_trainable), progress(world_size) {
    taken.reserve(world_size);
    sources.reserve(world_size);
  }
  void Run() override;

  JobImpl* const job;
  const uint32_t index;
  const bool trainable;

  ShardProgress progress;
  Activity activity = Activity::kIdle;
  bool updated = false;               // in the open step
  bool absent = false;                // ... and no rank had a gradient
  bool deferred = false;              // complete, but a reader holds the generation to be written
  uint64_t applied = 0;               // updates in all
  uint32_t next_crc32c = 0;           // of the served bytes of the coming version
  std::optional<uint32_t> sum_block;  // overflow block of the running sum
  std::optional<NonFiniteNote> sum_note;
  uint64_t flips = 0;                    // parity: which generation is current
  std::array<uint32_t, 2> readers = {};  // by generation

  // task
  uint64_t step = 0;
  std::vector<Contribution> taken;
  std::vector<ShardSource> sources;
  float* sum = nullptr;
  bool sum_is_new = false;
  std::span<const HyperParameters> groups;
  std::byte* copy_target = nullptr;

  // Loading: written ranges [first, end), ascending, apart from each other.
  std::vector<std::pair<uint64_t, uint64_t>> loaded;
  bool load_dirty = true;  // the served copy does not show the masters yet
};

}  // namespace luwu
