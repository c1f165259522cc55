#include "server/step/update_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <deque>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace luwu {
namespace {

struct CountingTask final : UpdatePool::Task {
  void Run() override { ++*runs; }
  std::atomic<int>* runs = nullptr;
};

TEST(UpdatePool, RunsEveryTaskOnceAndFinishesItsQueueAtTheEnd) {
  std::atomic<int> runs{0};
  std::deque<CountingTask> tasks(500);
  {
    UpdatePool pool(3);
    EXPECT_EQ(pool.threads(), 3u);
    for (CountingTask& task : tasks) {
      task.runs = &runs;
      pool.Submit(&task);
    }
  }
  EXPECT_EQ(runs, 500);
}

struct CpuTask final : UpdatePool::Task {
  void Run() override {
    cpu_set_t allowed;
    (void)::sched_getaffinity(0, sizeof(allowed), &allowed);
    cpus = CPU_COUNT(&allowed);
    done = true;
  }
  std::atomic<int> cpus{0};
  std::atomic<bool> done{false};
};

TEST(UpdatePool, PinnedThreadsHaveOneCpuEach) {
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  for (const bool pinned : {false, true}) {
    CpuTask task;
    {
      UpdatePool pool(SeatsFor(3, pinned, {}, AllowedCpus()));
      pool.Submit(&task);
    }
    EXPECT_TRUE(task.done);
    EXPECT_EQ(task.cpus, pinned ? 1 : CPU_COUNT(&own));
  }
}

struct OrderTask final : UpdatePool::Task {
  void Run() override { order->push_back(number); }
  std::vector<int>* order = nullptr;
  int number = 0;
};

TEST(UpdatePool, OneThreadRunsInOrderOfSubmission) {
  std::vector<int> order;
  std::deque<OrderTask> tasks(50);
  {
    UpdatePool pool(1);
    for (int i = 0; i < 50; ++i) {
      tasks[i].order = &order;
      tasks[i].number = i;
      pool.Submit(&tasks[i]);
    }
  }
  ASSERT_EQ(order.size(), 50u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

struct AgainTask final : UpdatePool::Task {
  void Run() override {
    if (--left > 0) {
      pool->Submit(this);
      return;
    }
    MutexLock lock(mutex);
    done = true;
    changed.NotifyAll();
  }
  UpdatePool* pool = nullptr;
  int left = 100;
  Mutex mutex;
  CondVar changed;
  bool done LUWU_GUARDED_BY(mutex) = false;
};

TEST(UpdatePool, ATaskMayBeSubmittedAgainFromItsOwnRun) {
  UpdatePool pool(2);
  AgainTask task;
  task.pool = &pool;
  pool.Submit(&task);
  const TimePoint deadline = DeadlineAfter(30000);
  MutexLock lock(task.mutex);
  while (!task.done) ASSERT_TRUE(task.changed.WaitUntil(task.mutex, deadline));
}

// Runs until the other of its pair runs, too.
struct MeetingTask final : UpdatePool::Task {
  MeetingTask(std::barrier<>* both, uint32_t home) : meeting(both) { set_home(home); }
  void Run() override {
    cpu_set_t allowed;
    (void)::sched_getaffinity(0, sizeof(allowed), &allowed);
    cpus = CPU_COUNT(&allowed);
    meeting->arrive_and_wait();
  }
  std::barrier<>* const meeting;
  int cpus = 0;
};

// The first home's thread is known by its one CPU; the other's runs on two or, on a host with one,
// cannot be told apart.
std::vector<UpdateSeat> TwoHomes() {
  const std::vector<uint32_t> allowed = AllowedCpus();
  return {{0, {allowed.front()}}, {1, {allowed.front(), allowed.back()}}};
}

TEST(UpdatePool, AThreadTakesTheTasksOfItsOwnHomeFirst) {
  std::barrier next(2);
  MeetingTask near[] = {{&next, 1}, {&next, 0}};
  {
    UpdatePool pool(TwoHomes());
    std::barrier start(3);
    MeetingTask gates[] = {{&start, 0}, {&start, 1}};
    for (MeetingTask& gate : gates) pool.Submit(&gate);
    while (pool.queued() > 0) std::this_thread::yield();  // until both threads have one
    for (MeetingTask& task : near) pool.Submit(&task);
    start.arrive_and_wait();
  }
  EXPECT_EQ(near[1].cpus, 1);
  EXPECT_EQ(near[0].cpus, AllowedCpus().size() > 1 ? 2 : 1);
}

TEST(UpdatePool, AnIdleThreadTakesTasksOfAnotherHome) {
  std::barrier both(2);
  MeetingTask tasks[] = {{&both, 1}, {&both, 1}};
  UpdatePool pool(TwoHomes());
  for (MeetingTask& task : tasks) pool.Submit(&task);  // ends when both threads have one
}

}  // namespace
}  // namespace luwu
