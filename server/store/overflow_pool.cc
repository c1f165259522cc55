#include "server/store/overflow_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace luwu {
namespace {

uint64_t BlockBytes(const JobSpec& spec, const ShardMap& map) {
  uint64_t elements = 0;
  for (const LocalShard& shard : map.shards()) {
    if (spec.layers[shard.layer].trainable()) elements = std::max(elements, shard.elements);
  }
  return AlignUp(elements * sizeof(float), 64);
}

}  // namespace

uint64_t OverflowPool::BytesFor(const JobSpec& spec, const ShardMap& map) {
  const uint64_t block_bytes = BlockBytes(spec, map);
  return block_bytes == 0 ? 0 : spec.overflow_bytes / block_bytes * block_bytes;
}

StatusOr<OverflowPool> OverflowPool::Create(const JobSpec& spec, const ShardMap& map) {
  OverflowPool pool;
  pool.block_bytes_ = BlockBytes(spec, map);
  const uint64_t bytes = BytesFor(spec, map);
  ASSIGN_OR_RETURN(pool.memory_, AllocateHuge(bytes));
  pool.block_count_ = bytes == 0 ? 0 : bytes / pool.block_bytes_;
  pool.free_.reserve(pool.block_count_);
  for (uint64_t i = pool.block_count_; i > 0; --i) {
    pool.free_.push_back(static_cast<uint32_t>(i - 1));
  }
  return pool;
}

std::optional<uint32_t> OverflowPool::Take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t block = free_.back();
  free_.pop_back();
  return block;
}

void OverflowPool::Give(uint32_t block) {
  LUWU_CHECK(block < block_count_ && free_.size() < block_count_, "a block of this pool");
  free_.push_back(block);
}

}  // namespace luwu
