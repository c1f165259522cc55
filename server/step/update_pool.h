// The threads of the pipeline's update stage, "luwu-update-N", shared by all jobs of a daemon.
//
// Tasks are intrusive: the owner embeds them, one for each thing that can be in flight (a job: one
// per shard), so the queue is bounded by what exists and submitting never allocates. Tasks run in
// the order of submission. A task is submitted again only after its Run has begun; the pool does
// not touch it after that, so Run may destroy it.
//
// Thread-safe. The owner of a task waits for its own tasks before it destroys them.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/sync.h"

namespace luwu {

class UpdatePool {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    // On an update thread. Must not wait for another task.
    virtual void Run() = 0;

   private:
    friend class UpdatePool;
    Task* next_ = nullptr;
  };

  // `threads` >= 1 (CHECKed). `pinned`: thread i stays on the i-th of the CPUs that the process may
  // use, beginning again when they run out.
  explicit UpdatePool(uint32_t threads, bool pinned = false);
  // Runs what is queued, then joins the threads.
  ~UpdatePool();

  UpdatePool(const UpdatePool&) = delete;
  UpdatePool& operator=(const UpdatePool&) = delete;

  void Submit(Task* task) LUWU_EXCLUDES(mutex_);
  uint32_t threads() const { return static_cast<uint32_t>(threads_.size()); }
  uint64_t queued() const LUWU_EXCLUDES(mutex_);

 private:
  void Loop(uint32_t number, bool pinned);

  mutable Mutex mutex_;
  CondVar wake_;
  Task* head_ LUWU_GUARDED_BY(mutex_) = nullptr;
  Task* tail_ LUWU_GUARDED_BY(mutex_) = nullptr;
  uint64_t queued_ LUWU_GUARDED_BY(mutex_) = 0;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace luwu
