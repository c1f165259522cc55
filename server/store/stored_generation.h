// A generation of a shard that is on disk, or on its way there. Whoever may still want its bytes
// holds it: the tier (as the current one or the next), readers, and the points that are being made.
// When the last holder lets go of one that is in no point, its space is free.
//
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/persist/job_storage.h"

namespace luwu {

// A job's use of its storage. It ends before the job does: readers may hold generations for longer
// than the storage knows them.
class StorageUse {
 public:
  explicit StorageUse(std::shared_ptr<persist::JobStorage> storage)
      : storage_(std::move(storage)) {}

  persist::JobStorage& storage() const { return *storage_; }
  const std::shared_ptr<persist::JobStorage>& shared_storage() const { return storage_; }
  void Discard(const persist::Generation& generation) {
    MutexLock lock(mutex_);
    if (!ended_) storage_->Discard(generation);
  }
  void End() {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  bool ended() const {
    MutexLock lock(mutex_);
    return ended_;
  }

 private:
  const std::shared_ptr<persist::JobStorage> storage_;
  mutable Mutex mutex_;
  bool ended_ LUWU_GUARDED_BY(mutex_) = false;
};

class StoredGeneration {
 public:
  // Being written.
  explicit StoredGeneration(std::shared_ptr<StorageUse> use) : use_(std::move(use)) {}
  // Part of a point.
  StoredGeneration(std::shared_ptr<StorageUse> use, const persist::Generation& generation)
      : use_(std::move(use)), result_(generation), committed_(true) {}
  ~StoredGeneration() {
    MutexLock lock(mutex_);
    if (result_ && result_->ok() && !committed_) use_->Discard(**result_);
  }
  StoredGeneration(const StoredGeneration&) = delete;
  StoredGeneration& operator=(const StoredGeneration&) = delete;

  // The write has ended.
  void Set(StatusOr<persist::Generation> result) {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    written_.NotifyAll();
  }
  bool written() const {
    MutexLock lock(mutex_);
    return result_.has_value();
  }
  // Waits for the write, which ends by itself.
  StatusOr<persist::Generation> Wait() const {
    MutexLock lock(mutex_);
    while (!result_) written_.Wait(mutex_);
    return *result_;
  }
  void MarkCommitted() {
    MutexLock lock(mutex_);
    committed_ = true;
  }
  bool committed() const {
    MutexLock lock(mutex_);
    return committed_;
  }

 private:
  const std::shared_ptr<StorageUse> use_;
  mutable Mutex mutex_;
  mutable CondVar written_;
  std::optional<StatusOr<persist::Generation>> result_ LUWU_GUARDED_BY(mutex_);
  bool committed_ LUWU_GUARDED_BY(mutex_) = false;
};

}  // namespace luwu
