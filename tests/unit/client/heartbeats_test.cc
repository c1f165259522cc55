// Heartbeats of a session: each node has its own pace, a silent one delays nobody, and an answer
// that ends the session is told once.
#include "client/src/heartbeats.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/unit/client/fake_control.h"

namespace luwu::client {
namespace {

constexpr uint32_t kHeartbeatMs = 50;

TEST(HeartbeatsTest, ANodeThatDoesNotAnswerDelaysNobody) {
  FakeControl alive("n0");
  FakeControl gone("n1");
  NodeRpc to_alive(alive.node().control_address, "n0");
  NodeRpc to_gone(gone.node().control_address, "n1");
  gone.Stop();
  Heartbeats heartbeats;
  heartbeats.Add(1, &to_gone, kHeartbeatMs);
  heartbeats.Add(0, &to_alive, kHeartbeatMs);
  EXPECT_TRUE(alive.AwaitHeartbeats(5));
}

TEST(HeartbeatsTest, AskDoesNotWaitForTheNextTurn) {
  FakeControl node("n0");
  NodeRpc rpc(node.node().control_address, "n0");
  Heartbeats heartbeats;
  heartbeats.Add(0, &rpc, 3'600'000);
  ASSERT_TRUE(node.AwaitHeartbeats(1));
  heartbeats.Ask(0);
  EXPECT_TRUE(node.AwaitHeartbeats(2));
  heartbeats.Ask(5);  // unknown: ignored
}

TEST(HeartbeatsTest, TheEndOfTheSessionIsToldOnceAndEndsTheSending) {
  FakeControl node("n0");
  std::atomic<int> refused{0};
  node.on_heartbeat = [&] {
    ++refused;
    return Error(ErrorCode::kFenced, "rank 0 was replaced");
  };
  NodeRpc rpc(node.node().control_address, "n0");
  Mutex mutex;
  CondVar changed;
  std::vector<Status> told;
  Heartbeats heartbeats;
  heartbeats.Add(0, &rpc, kHeartbeatMs);
  heartbeats.Watch([&](const Status& why) {
    MutexLock lock(mutex);
    told.push_back(why);
    changed.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    const TimePoint deadline = DeadlineAfter(FakeControl::kPatienceMs);
    while (told.empty() && changed.WaitUntil(mutex, deadline)) {
    }
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(CodeOf(told[0]), ErrorCode::kFenced);
  }
  heartbeats.Ask(0);
  heartbeats.Stop();
  EXPECT_EQ(refused, 1);
  MutexLock lock(mutex);
  EXPECT_EQ(told.size(), 1u);
}

TEST(HeartbeatsTest, ALateListenerHearsOfAnEndThatHasBeen) {
  FakeControl node("n0");
  node.on_heartbeat = [] { return Error(ErrorCode::kFenced, "replaced"); };
  NodeRpc rpc(node.node().control_address, "n0");
  Heartbeats heartbeats;
  heartbeats.Add(0, &rpc, kHeartbeatMs);
  ASSERT_TRUE(node.AwaitHeartbeats(1));
  Mutex mutex;
  CondVar changed;
  bool told = false;
  heartbeats.Watch([&](const Status&) {
    MutexLock lock(mutex);
    told = true;
    changed.NotifyAll();
  });
  MutexLock lock(mutex);
  const TimePoint deadline = DeadlineAfter(FakeControl::kPatienceMs);
  while (!told && changed.WaitUntil(mutex, deadline)) {
  }
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace luwu::client
