// The memory tier: all arrays of the resident shards in one block of huge pages, touched at
// creation, layer-major; within a shard generation by generation, within a generation array by
// array.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/store/shard_homes.h"
#include "server/store/state_shape.h"
#include "server/store/state_store.h"

namespace luwu {

// Bytes that MemoryStore::Create allocates when every shard is resident.
uint64_t StateBytes(const JobSpec& spec, const ShardMap& map);

class MemoryStore final : public StateStore {
 public:
  // All arrays are zero. Without `resident` (by local shard) every shard is. kResourceExhausted
  // when the system has not that much memory.
  static StatusOr<std::unique_ptr<MemoryStore>> Create(const JobSpec& spec, const ShardMap& map,
                                                       const std::vector<bool>* resident = nullptr,
                                                       const ShardHomes& homes = {});
  struct Private {};
  explicit MemoryStore(Private) {}

  void SetListener(StateListener*) override {}
  void Stop() override {}
  bool resident(uint32_t index) const override { return slots_[index].is_resident; }
  uint64_t bytes() const override { return memory_.bytes(); }
  SpillCounters counters() const override { return {}; }
  // In memory everything is always loaded and stored.
  bool Request(uint32_t) override { return true; }
  void Forgo(uint32_t) override {}
  ShardState Acquire(uint32_t index) override;
  void Release(uint32_t) override {}
  void Drop(uint32_t) override {}
  void Flip(uint32_t index) override;
  void Pass(uint32_t) override {}
  Status Open(uint32_t) override { return OkStatus(); }
  void Keep(uint32_t) override {}
  Status Flush() override { return OkStatus(); }
  void SetCurrent(uint32_t, std::shared_ptr<StoredGeneration>) override {}
  StatePin Pin(uint32_t index) override { return {Acquire(index).current, nullptr}; }
  StatusOr<optim::StateArrays> ReadPinned(uint32_t, const StatePin& pin, Mapping*) override {
    return pin.arrays;
  }

 private:
  struct Slot {
    StateShape shape;
    uint64_t offset = 0;  // of the first array, in bytes
    bool is_resident = true;
    uint32_t current = 0;
  };

  optim::StateArrays Generation(const Slot& slot, uint32_t generation) const {
    return slot.shape.ArraysAt(memory_.data() + slot.offset +
                               generation * slot.shape.generation_bytes);
  }

  Mapping memory_;
  std::vector<Slot> slots_;
};

}  // namespace luwu
