#include "server/store/memory_store.h"

#include "common/base/bytes.h"

namespace luwu {
namespace {

struct ShardShape {
  std::array<uint64_t, optim::kStateArraysMax> array_bytes = {};
  uint64_t generation_bytes = 0;
  uint32_t generations = 1;
  uint64_t bytes() const { return generation_bytes * generations; }
};

ShardShape ShapeOf(const JobSpec& spec, const LocalShard& shard) {
  const LayerSpec& layer = spec.layers[shard.layer];
  optim::StateLayout layout = {1, {optim::StateFormat::kFloat32}};
  ShardShape shape;
  if (layer.trainable()) {
    layout = optim::LayoutOf(spec.optimizer);
    if (KeepsUndoState(spec)) shape.generations = 2;
  }
  const uint64_t segments_max = 2 * layer.tensors.size() + 1;  // tensors and the gaps around them
  for (uint32_t i = 0; i < layout.count; ++i) {
    shape.array_bytes[i] = optim::ArrayBytes(layout.formats[i], shard.elements, segments_max);
    shape.generation_bytes += shape.array_bytes[i];
  }
  return shape;
}

}  // namespace

uint64_t StateBytes(const JobSpec& spec, const ShardMap& map) {
  uint64_t bytes = 0;
  for (const LocalShard& shard : map.shards()) bytes += ShapeOf(spec, shard).bytes();
  return bytes;
}

StatusOr<std::unique_ptr<MemoryStore>> MemoryStore::Create(const JobSpec& spec,
                                                           const ShardMap& map) {
  auto store = std::make_unique<MemoryStore>(Private{});
  store->slots_.reserve(map.shard_count());
  uint64_t offset = 0;
  for (const LocalShard& shard : map.shards()) {
    const ShardShape shape = ShapeOf(spec, shard);
    store->slots_.push_back(
        {offset, shape.array_bytes, shape.generation_bytes, shape.generations, 0});
    offset += shape.bytes();
  }
  ASSIGN_OR_RETURN(store->memory_, AllocateHuge(offset));
  return store;
}

optim::StateArrays MemoryStore::Generation(const Slot& slot, uint32_t generation) const {
  optim::StateArrays arrays;
  std::byte* next = memory_.data() + slot.offset + generation * slot.generation_bytes;
  for (uint32_t i = 0; i < optim::kStateArraysMax && slot.array_bytes[i] != 0; ++i) {
    arrays.data[i] = next;
    next += slot.array_bytes[i];
  }
  return arrays;
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
