// Blocks of fp32 memory, all of one size, for gradients that cannot stay in their slot: running
// sums, and contributions that came before their turn. Allocated and touched once; an empty pool is
// an answer, not an error (the worker waits).
//
// Not thread-safe: guarded by its job's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"

namespace luwu {

class OverflowPool {
 public:
  // Bytes of the blocks that fit into `spec.overflow_bytes`, each as large as the largest local
  // trainable shard in fp32.
  static uint64_t BytesFor(const JobSpec& spec, const ShardMap& map);
  static StatusOr<OverflowPool> Create(const JobSpec& spec, const ShardMap& map);

  std::optional<uint32_t> Take();
  void Give(uint32_t block);
  std::byte* data(uint32_t block) const { return memory_.data() + block * block_bytes_; }
  float* floats(uint32_t block) const {
    return static_cast<float*>(static_cast<void*>(data(block)));
  }

  bool empty() const { return free_.empty(); }
  uint64_t free_blocks() const { return free_.size(); }
  uint64_t block_count() const { return block_count_; }

 private:
  OverflowPool() = default;

  Mapping memory_;
  uint64_t block_bytes_ = 0;
  uint64_t block_count_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace luwu
