#include "server/step/update_pool.h"

#include <pthread.h>

#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/liveness.h"

namespace luwu {

UpdatePool::UpdatePool(std::vector<UpdateSeat> seats)
    : seats_(std::move(seats)), homes_(HomesOf(seats_)), lanes_(homes_.homes()) {
  LUWU_CHECK(!seats_.empty(), "the update stage needs a thread");
  std::vector<bool> seated(homes_.homes(), false);
  for (const UpdateSeat& seat : seats_) seated[seat.home] = true;
  for (const bool home : seated) LUWU_CHECK(home, "every home has a thread");
  threads_.reserve(seats_.size());
  for (uint32_t i = 0; i < seats_.size(); ++i) threads_.emplace_back([this, i] { Loop(i); });
}

UpdatePool::~UpdatePool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (Lane& lane : lanes_) lane.wake.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void UpdatePool::Submit(Task* task) {
  MutexLock lock(mutex_);
  LUWU_CHECK(!stopping_, "the owners of tasks stop before their pool");
  Lane& lane = lanes_[task->home_];
  task->next_ = nullptr;
  (lane.tail == nullptr ? lane.head : lane.tail->next_) = task;
  lane.tail = task;
  ++queued_;
  WakeOne(task->home_);
}

// Of that home when it can be. When nobody is idle, who is done next looks by itself.
void UpdatePool::WakeOne(uint32_t home) {
  for (uint32_t turn = 0; turn < lanes_.size(); ++turn) {
    Lane& lane = lanes_[(home + turn) % lanes_.size()];
    if (lane.idle == lane.woken) continue;
    ++lane.woken;
    lane.wake.NotifyOne();
    return;
  }
}

uint64_t UpdatePool::queued() const {
  MutexLock lock(mutex_);
  return queued_;
}

UpdatePool::Task* UpdatePool::Take(uint32_t home) {
  for (uint32_t turn = 0; turn < lanes_.size(); ++turn) {
    Lane& lane = lanes_[(home + turn) % lanes_.size()];
    if (lane.head == nullptr) continue;
    Task* task = std::exchange(lane.head, lane.head->next_);
    if (lane.head == nullptr) lane.tail = nullptr;
    --queued_;
    return task;
  }
  return nullptr;
}

// Null when the pool has stopped and nothing is queued.
UpdatePool::Task* UpdatePool::Next(uint32_t home) {
  MutexLock lock(mutex_);
  Lane& lane = lanes_[home];
  for (;;) {
    Task* task = Take(home);
    if (task != nullptr || stopping_) return task;
    ++lane.idle;
    lane.wake.Wait(mutex_);
    --lane.idle;
    if (lane.woken > 0) --lane.woken;
  }
}

void UpdatePool::Loop(uint32_t number) {
  const std::string name = fmt::format("luwu-update-{}", number);
  if (!seats_[number].cpus.empty()) (void)StayOn(seats_[number].cpus);
  ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
  LiveLoop live(name);
  while (Task* task = Next(seats_[number].home)) {
    live.Begin();
    LUWU_FAILPOINT("step.update");
    task->Run();
    live.End();
  }
}

}  // namespace luwu
