#include "server/store/held_sums.h"

#include <utility>

#include "common/base/bytes.h"

namespace luwu {
namespace {

constexpr uint64_t kAlignment = 64;

// 0: nothing is kept.
uint64_t ShardBytes(const JobSpec& spec, const LocalShard& shard, SumsUse use) {
  const bool held = use == SumsUse::kHeld;
  if (!(held ? HoldsSums(spec) : KeepsRunningSums(spec))) return 0;
  if (!spec.layers[shard.layer].trainable()) return 0;
  const DType dtype = held ? spec.held_dtype : DType::kFloat32;
  return AlignUp(shard.elements * DTypeBytes(dtype), kAlignment);
}

}  // namespace

uint64_t HeldSums::BytesFor(const JobSpec& spec, const ShardMap& map, SumsUse use) {
  uint64_t bytes = 0;
  for (const LocalShard& shard : map.shards()) bytes += ShardBytes(spec, shard, use);
  return bytes;
}

StatusOr<HeldSums> HeldSums::Create(const JobSpec& spec, const ShardMap& map, SumsUse use,
                                    const ShardHomes& homes) {
  HeldSums held;
  held.offsets_.reserve(map.shard_count());
  std::vector<ShardHomes::Start> starts;
  uint64_t offset = 0;
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    const uint64_t bytes = ShardBytes(spec, map.shards()[i], use);
    starts.push_back({offset, i});
    held.offsets_.push_back(bytes == 0 ? kNone : offset);
    offset += bytes;
  }
  ASSIGN_OR_RETURN(held.memory_,
                   AllocateHuge(offset, homes.TouchFor(std::move(starts), kHugePageBytes)));
  return held;
}

}  // namespace luwu
