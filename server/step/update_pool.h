// The threads of the pipeline's update stage, "luwu-update-N", shared by all jobs of a daemon.
//
// Tasks are intrusive: the owner embeds them, one for each thing that can be in flight (a job: one
// per shard), so the queue is bounded by what exists and submitting never allocates. A task is
// submitted again only after its Run has begun; the pool does not touch it after that, so Run may
// destroy it.
//
// Each home (server/store/shard_homes.h) has a queue, whose tasks run in the order of submission,
// on a thread of that home when one is idle. A thread without a task of its own home takes one of
// another: locality is a preference, an idle thread beside a waiting task a loss.
//
// Thread-safe. The owner of a task waits for its own tasks before it destroys them.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "server/step/update_seats.h"

namespace luwu {

class UpdatePool {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    // On an update thread. Must not wait for another task.
    virtual void Run() = 0;

   protected:
    // Before it is submitted. A home of its pool.
    void set_home(uint32_t home) { home_ = home; }

   private:
    friend class UpdatePool;
    Task* next_ = nullptr;
    uint32_t home_ = 0;
  };

  // One thread for each seat, of which there is one at least; every home has a seat (CHECKed). A
  // thread that cannot stay on its CPUs runs where the scheduler puts it.
  explicit UpdatePool(std::vector<UpdateSeat> seats);
  // Threads that run anywhere.
  explicit UpdatePool(uint32_t threads) : UpdatePool(std::vector<UpdateSeat>(threads)) {}
  // Runs what is queued, then joins the threads.
  ~UpdatePool();

  UpdatePool(const UpdatePool&) = delete;
  UpdatePool& operator=(const UpdatePool&) = delete;

  void Submit(Task* task) LUWU_EXCLUDES(mutex_);
  uint32_t threads() const { return static_cast<uint32_t>(seats_.size()); }
  const ShardHomes& homes() const { return homes_; }
  uint64_t queued() const LUWU_EXCLUDES(mutex_);

 private:
  struct Lane {  // of a home
    Task* head = nullptr;
    Task* tail = nullptr;
    uint32_t idle = 0;   // threads that wait ...
    uint32_t woken = 0;  // ... of which so many were told to look
    CondVar wake;
  };

  void Loop(uint32_t number);
  Task* Next(uint32_t home) LUWU_EXCLUDES(mutex_);
  Task* Take(uint32_t home) LUWU_REQUIRES(mutex_);
  void WakeOne(uint32_t home) LUWU_REQUIRES(mutex_);

  const std::vector<UpdateSeat> seats_;
  const ShardHomes homes_;
  mutable Mutex mutex_;
  std::vector<Lane> lanes_ LUWU_GUARDED_BY(mutex_);  // by home
  uint64_t queued_ LUWU_GUARDED_BY(mutex_) = 0;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace luwu
