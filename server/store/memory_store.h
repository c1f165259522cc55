// The memory tier: all arrays of all local shards in one block of huge pages, touched at creation,
// layer-major; within a shard generation by generation, within a generation array by array.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/store/state_store.h"

namespace luwu {

// Bytes that MemoryStore::Create allocates.
uint64_t StateBytes(const JobSpec& spec, const ShardMap& map);

class MemoryStore final : public StateStore {
 public:
  // All arrays are zero. kResourceExhausted when the system has not that much memory.
  static StatusOr<std::unique_ptr<MemoryStore>> Create(const JobSpec& spec, const ShardMap& map);
  struct Private {};
  explicit MemoryStore(Private) {}

  ShardState Acquire(uint32_t index) override;
  void Release(uint32_t index) override;
  void Flip(uint32_t index) override;
  uint64_t bytes() const override { return memory_.bytes(); }

 private:
  struct Slot {
    uint64_t offset = 0;  // of the first array, in bytes
    std::array<uint64_t, optim::kStateArraysMax> array_bytes = {};
    uint64_t generation_bytes = 0;
    uint32_t generations = 0;
    uint32_t current = 0;
  };

  optim::StateArrays Generation(const Slot& slot, uint32_t generation) const;

  Mapping memory_;
  std::vector<Slot> slots_;
};

}  // namespace luwu
