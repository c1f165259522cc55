#include "server/store/memory_store.h"

#include <utility>

namespace luwu {

uint64_t StateBytes(const JobSpec& spec, const ShardMap& map) {
  uint64_t bytes = 0;
  for (const LocalShard& shard : map.shards()) {
    const StateShape shape = ShapeOf(spec, shard);
    bytes += shape.generation_bytes * shape.generations;
  }
  return bytes;
}

StatusOr<std::unique_ptr<MemoryStore>> MemoryStore::Create(const JobSpec& spec, const ShardMap& map,
                                                           const std::vector<bool>* resident,
                                                           const ShardHomes& homes) {
  auto store = std::make_unique<MemoryStore>(Private{});
  store->slots_.reserve(map.shard_count());
  std::vector<ShardHomes::Start> starts;
  uint64_t offset = 0;
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    Slot slot;
    slot.shape = ShapeOf(spec, map.shards()[i]);
    slot.offset = offset;
    slot.is_resident = resident == nullptr || (*resident)[i];
    if (slot.is_resident) starts.push_back({offset, i});
    if (slot.is_resident) offset += slot.shape.generation_bytes * slot.shape.generations;
    store->slots_.push_back(slot);
  }
  ASSIGN_OR_RETURN(store->memory_,
                   AllocateHuge(offset, homes.TouchFor(std::move(starts), kHugePageBytes)));
  return store;
}

ShardState MemoryStore::Acquire(uint32_t index) {
  const Slot& slot = slots_[index];
  return {Generation(slot, slot.current),
          Generation(slot, (slot.current + 1) % slot.shape.generations), nullptr};
}

void MemoryStore::Flip(uint32_t index) {
  Slot& slot = slots_[index];
  slot.current = (slot.current + 1) % slot.shape.generations;
}

}  // namespace luwu
