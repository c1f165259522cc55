#include "server/store/memory_store.h"

#include "common/base/bytes.h"

namespace luwu {
namespace {

constexpr uint64_t kAlignFloats = 16;  // arrays begin on a cache line

struct ShardShape {
  uint64_t stride = 0;
  uint32_t arrays = 0;
  uint32_t generations = 0;
  uint64_t floats() const { return stride * arrays * generations; }
};

ShardShape ShapeOf(const JobSpec& spec, const LocalShard& shard) {
  ShardShape shape;
  shape.stride = AlignUp(shard.elements, kAlignFloats);
  const bool trainable = spec.layers[shard.layer].trainable();
  shape.arrays = trainable ? optim::StateArrayCount(spec.optimizer) : 1;
  shape.generations = trainable && spec.keep_undo_state ? 2 : 1;
  return shape;
}

}  // namespace

uint64_t StateBytes(const JobSpec& spec, const ShardMap& map) {
  uint64_t floats = 0;
  for (const LocalShard& shard : map.shards()) floats += ShapeOf(spec, shard).floats();
  return floats * sizeof(float);
}

StatusOr<std::unique_ptr<MemoryStore>> MemoryStore::Create(const JobSpec& spec,
                                                           const ShardMap& map) {
  auto store = std::make_unique<MemoryStore>(Private{});
  store->slots_.reserve(map.shard_count());
  uint64_t offset = 0;
  for (const LocalShard& shard : map.shards()) {
    const ShardShape shape = ShapeOf(spec, shard);
    store->slots_.push_back({offset, shape.stride, shape.arrays, shape.generations, 0});
    offset += shape.floats();
  }
  ASSIGN_OR_RETURN(store->memory_, AllocateHuge(offset * sizeof(float)));
  return store;
}

optim::StatePointers MemoryStore::Generation(const Slot& slot, uint32_t generation) const {
  optim::StatePointers pointers = {};
  float* base = reinterpret_cast<float*>(memory_.data()) + slot.offset +
                generation * slot.arrays * slot.stride;
  for (uint32_t i = 0; i < slot.arrays; ++i) pointers[i] = base + i * slot.stride;
  return pointers;
}

ShardState MemoryStore::Acquire(uint32_t index) {
  const Slot& slot = slots_[index];
  return {Generation(slot, slot.current), Generation(slot, (slot.current + 1) % slot.generations)};
}

// In memory everything is always loaded and stored.
void MemoryStore::Release(uint32_t) {}

void MemoryStore::Flip(uint32_t index) {
  Slot& slot = slots_[index];
  slot.current = (slot.current + 1) % slot.generations;
}

}  // namespace luwu
