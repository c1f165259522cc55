// The disk tier: shards whose state is on disk and passes through a few staging buffers.
//
//   out -> loading -> loaded -> in use -> storing -> out
//                        ^        |  ^
//                        |        v  |
//                        +------ kept (while masters are loaded; stored when its buffer is needed)
//
// Read ahead: order_ has the shards by the time of their last use. The order of updates is the same
// in every step, so the one at the front is the next to be wanted: free buffers are given to it. A
// shard that was requested comes before all of these, and takes the buffer of the one that was read
// ahead and is wanted last. So there is always progress with at least one buffer that is not in
// use, whatever the order is.
//
// Write behind: Release returns at once; the buffer is free when the storage has written it. When
// the same shard is requested before that, it goes on with the buffer it has.
//
// Threads: any. One lock, a leaf: the storage's calls and the listener's are made without it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/persist/adopted_buffers.h"
#include "server/persist/job_storage.h"
#include "server/store/residency_plan.h"
#include "server/store/state_shape.h"
#include "server/store/state_store.h"

namespace luwu {

class SpillStore {
 public:
  // Buffers are allocated and touched: kResourceExhausted.
  static StatusOr<std::unique_ptr<SpillStore>> Create(const JobSpec& spec, const ShardMap& map,
                                                      const ResidencyPlan& plan,
                                                      std::shared_ptr<StorageUse> use);
  struct Private {};
  explicit SpillStore(Private) {}
  ~SpillStore() { Stop(); }

  // As in StateStore; `index` is that of a shard that is not resident.
  void SetListener(StateListener* listener) LUWU_EXCLUDES(mutex_);
  void Stop() LUWU_EXCLUDES(mutex_);
  bool Request(uint32_t index) LUWU_EXCLUDES(mutex_);
  Status Open(uint32_t index) LUWU_EXCLUDES(mutex_);
  void Forgo(uint32_t index) LUWU_EXCLUDES(mutex_);
  ShardState Acquire(uint32_t index) LUWU_EXCLUDES(mutex_);
  void Release(uint32_t index) LUWU_EXCLUDES(mutex_);
  void Keep(uint32_t index) LUWU_EXCLUDES(mutex_);
  void Drop(uint32_t index) LUWU_EXCLUDES(mutex_);
  void Flip(uint32_t index) LUWU_EXCLUDES(mutex_);
  void Pass(uint32_t index) LUWU_EXCLUDES(mutex_);
  Status Flush() LUWU_EXCLUDES(mutex_);

  // Null while the shard has never been stored.
  std::shared_ptr<StoredGeneration> Current(uint32_t index) const LUWU_EXCLUDES(mutex_);
  // Before the first Request of a job that goes on from a point.
  void SetCurrent(uint32_t index, std::shared_ptr<StoredGeneration> generation)
      LUWU_EXCLUDES(mutex_);
  // Of a generation that begins at `base`.
  optim::StateArrays ArraysAt(uint32_t index, std::byte* base) const LUWU_EXCLUDES(mutex_);
  ByteSpan buffers() const { return memory_.span(); }
  SpillCounters counters() const LUWU_EXCLUDES(mutex_);

 private:
  enum class Phase : uint8_t { kOut, kLoading, kLoaded, kInUse, kKept, kStoring };
  struct Slot {
    StateShape shape;
    bool spilled = false;
    bool trainable = false;
    Phase phase = Phase::kOut;
    bool wanted = false;                        // requested, and not acquired yet
    uint32_t buffer = 0;                        // unless kOut
    uint64_t turn = 0;                          // of its last use
    std::shared_ptr<StoredGeneration> current;  // null: zeros
    std::shared_ptr<StoredGeneration> next;
    std::shared_ptr<StoredGeneration> storing;  // one of these, while kStoring
    std::list<uint32_t>::iterator place;        // in order_
  };
  // What is to be asked of the storage once the lock is released.
  struct Transfers {
    struct Load {
      uint32_t index = 0;
      std::shared_ptr<StoredGeneration> from;
    };
    std::vector<Load> loads;
    std::vector<uint32_t> stores;
    std::vector<uint32_t> loaded;  // for the listener
  };

  std::byte* BufferOf(const Slot& slot) const {
    return memory_.data() + slot.buffer * buffer_bytes_;
  }
  bool Want(uint32_t index, Transfers* out) LUWU_REQUIRES(mutex_);
  void Pump(Transfers* out) LUWU_REQUIRES(mutex_);
  bool FindBuffer(Transfers* out) LUWU_REQUIRES(mutex_);
  void StartLoad(uint32_t index, Transfers* out) LUWU_REQUIRES(mutex_);
  void StartStore(uint32_t index, std::shared_ptr<StoredGeneration>* as, Transfers* out)
      LUWU_REQUIRES(mutex_);
  void FreeBuffer(Slot& slot) LUWU_REQUIRES(mutex_);
  void MoveBack(Slot& slot) LUWU_REQUIRES(mutex_);
  void Run(const Transfers& transfers) LUWU_EXCLUDES(mutex_);
  void Load(const Transfers::Load& load) LUWU_EXCLUDES(mutex_);
  void EndLoad(uint32_t index, const Status& status) LUWU_EXCLUDES(mutex_);
  void EndStore(uint32_t index, const StatusOr<persist::Generation>& result) LUWU_EXCLUDES(mutex_);
  void Fail(const Status& why) LUWU_EXCLUDES(mutex_);
  void BeginTransfer() LUWU_REQUIRES(mutex_);
  void EndTransfer() LUWU_EXCLUDES(mutex_);

  std::shared_ptr<StorageUse> use_;
  uint64_t buffer_bytes_ = 0;
  Mapping memory_;
  persist::AdoptedBuffers adopted_;

  mutable Mutex mutex_;
  CondVar changed_;
  StateListener* listener_ LUWU_GUARDED_BY(mutex_) = nullptr;
  Status failed_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  bool reads_ahead_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<Slot> slots_ LUWU_GUARDED_BY(mutex_);
  std::list<uint32_t> order_ LUWU_GUARDED_BY(mutex_);      // trainable ones, longest unused first
  std::deque<uint32_t> wanted_ LUWU_GUARDED_BY(mutex_);    // requested, waiting for a buffer
  std::vector<uint32_t> free_ LUWU_GUARDED_BY(mutex_);     // buffers
  std::vector<uint32_t> holders_ LUWU_GUARDED_BY(mutex_);  // by buffer: the shard in it
  uint64_t in_flight_ LUWU_GUARDED_BY(mutex_) = 0;
  TimePoint busy_since_ LUWU_GUARDED_BY(mutex_);  // while something is in flight
  uint64_t turn_ LUWU_GUARDED_BY(mutex_) = 0;
  SpillCounters counters_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
