#include "server/step/update_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <deque>
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
      UpdatePool pool(3, pinned);
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

}  // namespace
}  // namespace luwu
