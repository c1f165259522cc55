// On a host of several NUMA nodes: which shard lies near which update threads. A home is a node
// with update threads of this daemon; a shard belongs to one, its memory is touched first by a
// thread on that node's CPUs, and its tasks are run there unless others are idle
// (server/step/update_pool.h). With one home, memory is touched by whoever makes it.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/memory.h"

namespace luwu {

class ShardHomes {
 public:
  // Where the bytes of a shard begin in a block; they end where the next ones begin.
  struct Start {
    uint64_t offset = 0;
    uint32_t shard = 0;
  };
  struct Part {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool operator==(const Part&) const = default;
  };

  ShardHomes() = default;  // one home
  // `cpus` by home; `home_of_shard` repeats itself over the shards of a job. Neither is empty.
  ShardHomes(std::vector<std::vector<uint32_t>> cpus, std::vector<uint32_t> home_of_shard)
      : cpus_(std::move(cpus)), home_of_shard_(std::move(home_of_shard)) {}

  uint32_t homes() const { return cpus_.empty() ? 1 : static_cast<uint32_t>(cpus_.size()); }
  uint32_t HomeOf(uint32_t shard) const {
    return home_of_shard_.empty() ? 0 : home_of_shard_[shard % home_of_shard_.size()];
  }

  // The parts of a block of `bytes` that belong to `home`, from one multiple of `page_bytes` to
  // another, or to the end. A page goes to whom its first byte belongs to; those before the first
  // start to the first home. `starts` in any order.
  std::vector<Part> PartsOf(uint32_t home, std::vector<Start> starts, uint64_t bytes,
                            uint64_t page_bytes) const;
  // Touches each part from its home. Empty, that is AllocateHuge's own way, with one home.
  Toucher TouchFor(std::vector<Start> starts, uint64_t page_bytes) const;
  // For memory that belongs to no shard: every node gets an equal part of it.
  Toucher TouchInTurns(uint64_t bytes) const;

 private:
  std::vector<std::vector<uint32_t>> cpus_;
  std::vector<uint32_t> home_of_shard_;
};

}  // namespace luwu
