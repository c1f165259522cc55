// Gradient sums of a job: one buffer for each local trainable shard, in one block of huge pages
// that is allocated and touched at creation. Held sums are what a job with deferred or speculative
// updates keeps until the step is decided, in the job's held dtype. Running sums, in float32, take
// in micro-steps before a shard is closed, where the held ones cannot.
//
// Threads: any; a shard's buffer is used by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/store/shard_homes.h"

namespace luwu {

enum class SumsUse : uint8_t { kHeld, kRunning };

class HeldSums {
 public:
  // 0 for a job that has no sums of this use.
  static uint64_t BytesFor(const JobSpec& spec, const ShardMap& map, SumsUse use);
  // kResourceExhausted when the system has not that much memory.
  static StatusOr<HeldSums> Create(const JobSpec& spec, const ShardMap& map, SumsUse use,
                                   const ShardHomes& homes = {});

  // Null for a frozen shard, and in a job that has no such sums. Aligned to a cache line.
  std::byte* data(uint32_t index) const {
    return offsets_[index] == kNone ? nullptr : memory_.data() + offsets_[index];
  }
  // Of running sums, and of held ones with held dtype float32.
  float* floats(uint32_t index) const {
    return static_cast<float*>(static_cast<void*>(data(index)));
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  HeldSums() = default;

  Mapping memory_;
  std::vector<uint64_t> offsets_;  // by local shard
};

}  // namespace luwu
