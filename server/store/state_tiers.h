// The state of a job whose memory does not hold all of it: resident shards in a MemoryStore, the
// others in a SpillStore.
#pragma once

#include <cstdint>
#include <memory>

#include "server/store/memory_store.h"
#include "server/store/spill_store.h"
#include "server/store/state_store.h"

namespace luwu {

class StateTiers final : public StateStore {
 public:
  StateTiers(std::unique_ptr<MemoryStore> memory, std::unique_ptr<SpillStore> disk,
             std::shared_ptr<StorageUse> use)
      : memory_(std::move(memory)), disk_(std::move(disk)), use_(std::move(use)) {}

  void SetListener(StateListener* listener) override { disk_->SetListener(listener); }
  void Stop() override { disk_->Stop(); }
  bool resident(uint32_t index) const override { return memory_->resident(index); }
  uint64_t bytes() const override { return memory_->bytes() + disk_->buffers().size(); }
  SpillCounters counters() const override { return disk_->counters(); }
  bool Request(uint32_t index) override { return resident(index) || disk_->Request(index); }
  void Forgo(uint32_t index) override {
    if (!resident(index)) disk_->Forgo(index);
  }
  ShardState Acquire(uint32_t index) override {
    return resident(index) ? memory_->Acquire(index) : disk_->Acquire(index);
  }
  void Release(uint32_t index) override {
    if (!resident(index)) disk_->Release(index);
  }
  void Drop(uint32_t index) override {
    if (!resident(index)) disk_->Drop(index);
  }
  void Flip(uint32_t index) override {
    resident(index) ? memory_->Flip(index) : disk_->Flip(index);
  }
  void Pass(uint32_t index) override {
    if (!resident(index)) disk_->Pass(index);
  }
  Status Open(uint32_t index) override { return resident(index) ? OkStatus() : disk_->Open(index); }
  void Keep(uint32_t index) override {
    if (!resident(index)) disk_->Keep(index);
  }
  Status Flush() override { return disk_->Flush(); }
  void SetCurrent(uint32_t index, std::shared_ptr<StoredGeneration> generation) override {
    disk_->SetCurrent(index, std::move(generation));
  }
  StatePin Pin(uint32_t index) override {
    return resident(index) ? memory_->Pin(index) : StatePin{{}, disk_->Current(index)};
  }
  StatusOr<optim::StateArrays> ReadPinned(uint32_t index, const StatePin& pin,
                                          Mapping* scratch) override;

 private:
  const std::unique_ptr<MemoryStore> memory_;
  const std::unique_ptr<SpillStore> disk_;
  const std::shared_ptr<StorageUse> use_;
};

}  // namespace luwu
