// Stores the points of one job on a thread of its own, "luwu-point": copies resident state into
// staging buffers and writes it, waits for what is being written of spilled state, commits it all
// to the storage at once, and lets the storage forget former points when all nodes have a newer
// one.
//
// The job announces a point and hands in each shard as it gets to the point's version, with a pin
// on its state; points are stored one after the other, in order. A shard that has not changed since
// the last point costs nothing.
//
// Threads: the public methods may be called from any, under the job's lock (Stop: without it, and
// not by a hook); hooks run on the thread of its own without any.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/persist/adopted_buffers.h"
#include "server/persist/job_storage.h"
#include "server/store/residency_plan.h"
#include "server/store/served_copies.h"
#include "server/store/state_shape.h"
#include "server/store/state_store.h"

namespace luwu {

// One shard at the version of a point.
struct PointItem {
  uint32_t index = 0;
  uint64_t applied = 0;
  StatePin pin;
  uint32_t generation = 0;      // of a resident shard: which one is pinned
  uint64_t served_version = 0;  // whose bytes belong to the state
};

class PointMaker {
 public:
  struct Hooks {
    std::function<void(const PointItem&)> unpin;        // a resident shard has been read
    std::function<void(const persist::Point&)> stored;  // on this node
    std::function<void(const Status&)> failed;          // nothing is stored from now on
  };
  // What it works with outlives it, up to the end of Stop. `buffers`: plan.point_buffers of them.
  static StatusOr<std::unique_ptr<PointMaker>> Create(const JobSpec& spec, const ShardMap& map,
                                                      const ResidencyPlan& plan,
                                                      std::shared_ptr<persist::JobStorage> storage);
  struct Private {};
  explicit PointMaker(Private) {}
  ~PointMaker();

  void Start(const ServedCopies* weights, Hooks hooks) LUWU_EXCLUDES(mutex_);
  // Items that have not been looked at stay pinned: the job ends with it.
  void Stop() LUWU_EXCLUDES(mutex_);

  // Every local shard is handed in after it, once.
  void Begin(const persist::Point& point) LUWU_EXCLUDES(mutex_);
  void Add(PointItem item) LUWU_EXCLUDES(mutex_);
  // All nodes have the point.
  void Confirm(uint64_t step) LUWU_EXCLUDES(mutex_);
  // The job goes on from a point, in which the shard has this generation.
  void SetRestored(uint32_t index, uint64_t applied, std::shared_ptr<StoredGeneration> generation)
      LUWU_EXCLUDES(mutex_);

  std::byte* buffer(uint32_t number) const { return memory_.data() + number * buffer_bytes_; }
  uint64_t written_bytes() const LUWU_EXCLUDES(mutex_);

 private:
  struct Shard {
    StateShape shape;
    std::optional<uint64_t> applied;               // of what the last point has
    std::shared_ptr<StoredGeneration> generation;  // the same, of a spilled shard
  };
  struct Changed {
    persist::ShardEntry entry;
    std::shared_ptr<StoredGeneration> generation;  // of a spilled shard
  };

  void Loop() LUWU_EXCLUDES(mutex_);
  void Handle(const PointItem& item) LUWU_EXCLUDES(mutex_);
  void HandleSpilled(const PointItem& item) LUWU_EXCLUDES(mutex_);
  void HandleResident(const PointItem& item) LUWU_EXCLUDES(mutex_);
  std::optional<uint32_t> TakeBuffer() LUWU_EXCLUDES(mutex_);
  void EndWrite(const PointItem& item, uint32_t buffer, StatusOr<persist::Generation> result)
      LUWU_EXCLUDES(mutex_);
  void AddChanged(const PointItem& item, persist::Generation generation,
                  std::shared_ptr<StoredGeneration> hold) LUWU_REQUIRES(mutex_);
  void Finish() LUWU_EXCLUDES(mutex_);
  void NoteCommitted(const persist::Point& point, const std::vector<Changed>& changed)
      LUWU_REQUIRES(mutex_);
  bool MayConfirm() const LUWU_REQUIRES(mutex_);
  void NoteFailure(const Status& why) LUWU_EXCLUDES(mutex_);

  std::shared_ptr<persist::JobStorage> storage_;
  persist::SyncLevel level_ = persist::SyncLevel::kSynced;
  uint64_t buffer_bytes_ = 0;
  Mapping memory_;
  persist::AdoptedBuffers adopted_;
  const ServedCopies* weights_ = nullptr;
  Hooks hooks_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  bool failed_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<Shard> shards_ LUWU_GUARDED_BY(mutex_);
  std::deque<persist::Point> points_ LUWU_GUARDED_BY(mutex_);  // to be stored; the first is begun
  std::deque<PointItem> items_ LUWU_GUARDED_BY(mutex_);
  uint64_t handled_ LUWU_GUARDED_BY(mutex_) = 0;  // items of the first point
  uint32_t writing_ LUWU_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> free_ LUWU_GUARDED_BY(mutex_);  // buffers
  std::vector<Changed> changed_ LUWU_GUARDED_BY(mutex_);
  // What a point has replaced, with that point's step: readers may still hold it.
  std::deque<std::pair<uint64_t, std::shared_ptr<StoredGeneration>>> replaced_
      LUWU_GUARDED_BY(mutex_);
  std::optional<uint64_t> confirm_ LUWU_GUARDED_BY(mutex_);
  uint64_t written_bytes_ LUWU_GUARDED_BY(mutex_) = 0;
};

}  // namespace luwu
