// Served copies of which memory holds a part at a time (common/wire/window.h): the weights region
// is a set of slots; all copies are on disk, and those that were used last are in slots as well.
// Training goes over the layers forwards, backwards, and forwards again with what the backward pass
// has updated, so that what was used last is what is wanted next: the longest unused slot is given
// away first.
//
//   slot:  free -> filling (Begin..Finish) -> storing -> held -> free
//          free -> loading ------------------------------^
//
// A copy can be read while it is being stored. Those who wait in Begin come before what workers
// want; both wait for I/O only, so one slot is enough for progress.
//
// Not for split masters, half of which lies in the served copy.
//
// Threads: as ServedCopies. One lock, a leaf: the storage's calls and the hooks are made without
// it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/store/served_copies.h"
#include "server/store/stored_generation.h"

namespace luwu {

class ServedWindow final : public ServedCopies {
 public:
  // `map` has a window; `spec` and `map` outlive the result. kResourceExhausted.
  static StatusOr<std::unique_ptr<ServedWindow>> Create(const JobSpec& spec, const ShardMap& map,
                                                        uint64_t epoch,
                                                        std::shared_ptr<StorageUse> use);
  // Of memory, beside the region.
  static uint64_t TableBytesFor(const ShardMap& map);
  struct Private {};
  ServedWindow(Private, const JobSpec& spec, const ShardMap& map, uint64_t epoch,
               std::shared_ptr<StorageUse> use);
  ~ServedWindow() override { ServedWindow::Stop(); }

  std::shared_ptr<transport::LocalRegion> region() const override { return region_; }
  uint64_t PayloadBytes(uint32_t index) const override;
  std::byte* Payload(uint32_t /*index*/, uint64_t /*version*/) const override { return nullptr; }

  StatusOr<std::byte*> Begin(uint32_t index, uint64_t version) override LUWU_EXCLUDES(mutex_);
  void Finish(uint32_t index, uint64_t version) override LUWU_EXCLUDES(mutex_);
  void Abandon(uint32_t index, uint64_t version) override LUWU_EXCLUDES(mutex_);
  // Nothing is copied: both versions are one generation on disk.
  uint32_t CopyToNext(uint32_t index, uint64_t version) override LUWU_EXCLUDES(mutex_);
  void Publish(uint32_t index, uint64_t version, uint32_t payload_crc32c) override
      LUWU_EXCLUDES(mutex_);

  void SetHooks(CopyHooks hooks) override LUWU_EXCLUDES(mutex_);
  void Cancel() override LUWU_EXCLUDES(mutex_);
  void Stop() override LUWU_EXCLUDES(mutex_);
  bool Want(CopyId copy) override LUWU_EXCLUDES(mutex_);
  uint64_t Place(CopyId copy) const override LUWU_EXCLUDES(mutex_);
  std::vector<CopyId> TakeMoved() override LUWU_EXCLUDES(mutex_);
  WindowCounters counters() const override LUWU_EXCLUDES(mutex_);

 private:
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  struct Copy {
    std::shared_ptr<StoredGeneration> stored;  // null: there is no such copy
    uint64_t version = 0;
    uint32_t crc32c = 0;
    bool published = false;
    bool wanted = false;  // is in wanted_
    uint32_t slot = kNowhere;
  };
  enum class Phase : uint8_t { kFree, kFilling, kStoring, kLoading, kHeld };
  struct Slot {
    Phase phase = Phase::kFree;
    CopyId holder;
    uint64_t residence = 0;               // of the present filling
    std::list<uint32_t>::iterator place;  // in held_, while kHeld
  };
  struct Load {
    CopyId id;
    uint32_t slot = 0;
    std::shared_ptr<StoredGeneration> from;
  };

  Copy& CopyOf(CopyId id) LUWU_REQUIRES(mutex_) { return copies_[id.index][id.parity]; }
  const Copy& CopyOf(CopyId id) const LUWU_REQUIRES(mutex_) { return copies_[id.index][id.parity]; }
  std::byte* SlotData(uint32_t slot) const;
  bool CanTakeSlot() const LUWU_REQUIRES(mutex_) { return !free_.empty() || !held_.empty(); }
  uint32_t TakeSlot(CopyId holder, Phase phase) LUWU_REQUIRES(mutex_);
  void FreeSlot(uint32_t slot) LUWU_REQUIRES(mutex_);
  void Hold(uint32_t slot) LUWU_REQUIRES(mutex_);
  void WriteHeader(uint32_t slot) LUWU_REQUIRES(mutex_);
  // What can be loaded now.
  std::vector<Load> Pump() LUWU_REQUIRES(mutex_);
  void Run(const std::vector<Load>& loads) LUWU_EXCLUDES(mutex_);
  void Start(const Load& load) LUWU_EXCLUDES(mutex_);
  void EndLoad(const Load& load, const Status& status) LUWU_EXCLUDES(mutex_);
  void EndStore(uint32_t slot, const std::shared_ptr<StoredGeneration>& stored,
                const StatusOr<persist::Generation>& result) LUWU_EXCLUDES(mutex_);
  void Fail(const Status& why) LUWU_EXCLUDES(mutex_);
  void EndTransfer() LUWU_EXCLUDES(mutex_);

  const JobSpec& spec_;
  const ShardMap& map_;
  const uint64_t epoch_;
  const std::shared_ptr<StorageUse> use_;
  std::shared_ptr<transport::LocalRegion> region_;

  mutable Mutex mutex_;
  CondVar changed_;
  CopyHooks hooks_ LUWU_GUARDED_BY(mutex_);
  Status failed_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<std::array<Copy, 2>> copies_ LUWU_GUARDED_BY(mutex_);  // by local shard and parity
  std::vector<Slot> slots_ LUWU_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ LUWU_GUARDED_BY(mutex_);
  std::list<uint32_t> held_ LUWU_GUARDED_BY(mutex_);  // longest unused first
  std::deque<CopyId> wanted_ LUWU_GUARDED_BY(mutex_);
  std::vector<CopyId> moved_ LUWU_GUARDED_BY(mutex_);
  uint64_t residences_ LUWU_GUARDED_BY(mutex_) = 0;
  uint32_t beginning_ LUWU_GUARDED_BY(mutex_) = 0;  // threads that wait in Begin
  uint64_t in_flight_ LUWU_GUARDED_BY(mutex_) = 0;
  WindowCounters counters_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
