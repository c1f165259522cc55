// Every task that was taken in runs exactly once; the queue is bounded; shutdown loses nothing.
#include "server/service/work_queue.h"

#include <atomic>
#include <future>

#include <gtest/gtest.h>

namespace luwu {
namespace {

TEST(WorkQueue, RunsEveryTaskItTookIn) {
  WorkQueue queue("test", 3, 1000);
  std::atomic<int> runs{0};
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(queue.Post([&] { ++runs; }));
  queue.Shutdown();
  EXPECT_EQ(runs, 500);
}

TEST(WorkQueue, RefusesWhatDoesNotFit) {
  WorkQueue queue("test", 1, 2);
  std::promise<void> started;
  std::promise<void> release;
  std::atomic<int> runs{0};
  ASSERT_TRUE(queue.Post([&] {
    started.set_value();
    release.get_future().wait();
  }));
  started.get_future().wait();
  EXPECT_TRUE(queue.Post([&] { ++runs; }));
  EXPECT_TRUE(queue.Post([&] { ++runs; }));
  EXPECT_FALSE(queue.Post([&] { ++runs; }));
  release.set_value();
  queue.Shutdown();
  EXPECT_EQ(runs, 2);
}

TEST(WorkQueue, TakesNothingAfterShutdown) {
  WorkQueue queue("test", 1, 10);
  queue.Shutdown();
  EXPECT_FALSE(queue.Post([] { FAIL() << "a refused task ran"; }));
  queue.Shutdown();  // again is harmless
}

TEST(WorkQueue, TasksRunInParallel) {
  WorkQueue queue("test", 2, 10);
  std::promise<void> first;
  std::promise<void> second;
  // Each waits for the other: one thread alone would never end.
  ASSERT_TRUE(queue.Post([&] {
    first.set_value();
    second.get_future().wait();
  }));
  ASSERT_TRUE(queue.Post([&] {
    second.set_value();
    first.get_future().wait();
  }));
  queue.Shutdown();
}

}  // namespace
}  // namespace luwu
