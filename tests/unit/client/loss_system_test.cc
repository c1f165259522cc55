// What callers hear when a daemon dies, hangs, or loses its links: the node by name and address,
// within the call's deadline; and nothing of a call that gave up still touches the caller's memory.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPatienceMs = 1500;
constexpr uint32_t kLongMs = 60'000;

class NodeLoss : public ::testing::TestWithParam<luwu_transport> {
 protected:
  cxx::Session Open(const cxx::JobSpec& job, uint32_t rank) {
    return cxx::Session({.endpoints = cluster_.endpoints(),
                         .job = job,
                         .rank = rank,
                         .transport = GetParam(),
                         .node_timeout_ms = kPatienceMs});
  }

  // Runs `call` in a thread, kills node n1 once it is under way, and checks how it ends.
  void ExpectNodeLost(const std::function<int32_t()>& call, const char* what) {
    int32_t status = 0;
    std::string text;
    Clock::time_point end;
    std::atomic<bool> started{false};
    std::thread thread([&] {
      started = true;
      status = call();
      text = luwu_last_error();
      end = Clock::now();
    });
    while (!started) std::this_thread::yield();
    // The call is known to be waiting when it has had far more time than it needs to get there;
    // were it not, it would meet a dead node and end in the same way.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cluster_.Kill(1);
    const Clock::time_point killed = Clock::now();
    thread.join();
    EXPECT_EQ(status, LUWU_E_NODE_LOST) << what << ": " << text;
    EXPECT_NE(text.find("n1"), std::string::npos) << what << ": " << text;
    EXPECT_NE(text.find(cluster_.endpoint(1)), std::string::npos) << what << ": " << text;
    // The bound that luwu.h and docs/PROTOCOL.md promise, with room for a busy machine.
    EXPECT_LT(end - killed, std::chrono::milliseconds(kPatienceMs + 1000 + 3000)) << what;
  }

  DaemonCluster cluster_{LUWU_LUWUD, {.nodes = 2}};
};

TEST_P(NodeLoss, EndsAFetchThatWaitsForAVersion) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job, 0);
  LoadAll(session, job);
  std::vector<float> values(677);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  ExpectNodeLost([&] { return luwu_fetch(session.handle(), 3, 1, &segment, 1, kLongMs); }, "fetch");
  // And every later call at once, whatever it is.
  EXPECT_EQ(luwu_fetch(session.handle(), 3, 0, &segment, 1, kLongMs), LUWU_E_NODE_LOST);
  const luwu_hyper group = cxx::adamw(1e-2);
  EXPECT_EQ(luwu_begin_step(session.handle(), 0, &group, 1, kLongMs), LUWU_E_NODE_LOST);
}

TEST_P(NodeLoss, EndsACommitThatWaitsForAnotherRank) {
  const cxx::JobSpec job = SmallJob(2);
  cxx::Session session = Open(job, 0);
  cxx::Session other = Open(job, 1);
  LoadAll(session, job);
  session.begin_step(0, {cxx::adamw(1e-2)});
  other.begin_step(0, {cxx::adamw(1e-2)});
  for (const uint32_t layer : {0u, 1u, 2u, 3u, 4u}) session.close_layer(layer);
  luwu_commit_result result = {};
  result.struct_size = sizeof result;
  ExpectNodeLost([&] { return luwu_commit(session.handle(), 0, &result, kLongMs); }, "commit");
}

TEST_P(NodeLoss, EndsAPushThatWaitsForCredit) {
  // No overflow pool and few slots: rank 1 never pushes, so the ring of rank 0 fills.
  cxx::JobSpec job = SmallJob(2);
  job.overflow_bytes = 0;
  job.slots_per_worker = 2;
  cxx::Session session = Open(job, 1);
  cxx::Session other = Open(job, 0);
  LoadAll(session, job);
  session.begin_step(0, {cxx::adamw(1e-2)});
  other.begin_step(0, {cxx::adamw(1e-2)});
  std::vector<float> values(677, 0.5f);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  ExpectNodeLost(
      [&] { return luwu_push(session.handle(), 3, &segment, 1, LUWU_PUSH_CLOSE, kLongMs); },
      "push");
}

TEST_P(NodeLoss, EndsAsynchronousOperations) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job, 0);
  LoadAll(session, job);
  std::vector<float> values(677);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  luwu_op op = 0;
  cxx::check(luwu_fetch_async(session.handle(), 3, 1, &segment, 1, kLongMs, &op));
  ExpectNodeLost([&] { return luwu_wait(op, kLongMs); }, "wait");
}

// Bug: it was "node lost: open a new session", long before node_timeout_ms.
TEST_P(NodeLoss, AShortDeadlineEndsFirstAndStillNamesTheNode) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session({.endpoints = cluster_.endpoints(),
                        .job = job,
                        .transport = GetParam(),
                        .node_timeout_ms = kLongMs});
  LoadAll(session, job);
  cluster_.Kill(1);
  std::vector<float> values(677);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  const luwu_hyper group = cxx::adamw(1e-2);
  const auto expect_deadline = [](int32_t status) {
    EXPECT_EQ(status, LUWU_E_DEADLINE) << luwu_last_error();
    EXPECT_NE(std::string(luwu_last_error()).find("n1"), std::string::npos) << luwu_last_error();
  };
  expect_deadline(luwu_begin_step(session.handle(), 0, &group, 1, 500));
  expect_deadline(luwu_fetch(session.handle(), 3, 1, &segment, 1, 500));
}

TEST_P(NodeLoss, RepeatedShortCallsEndInNodeLostOnceThePatienceIsOver) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job, 0);
  LoadAll(session, job);
  cluster_.Kill(1);
  std::vector<float> values(677);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  int32_t status = LUWU_E_DEADLINE;
  int deadlines = 0;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(kLongMs);
  while (status == LUWU_E_DEADLINE && Clock::now() < end) {
    status = luwu_fetch(session.handle(), 3, 1, &segment, 1, kPatienceMs / 5);
    deadlines += status == LUWU_E_DEADLINE;
  }
  EXPECT_EQ(status, LUWU_E_NODE_LOST) << luwu_last_error();
  EXPECT_GE(deadlines, 1);
}

// Back-pressure: the ring is full because another rank has not pushed. The push ends in its
// deadline, and repeating it after the other rank has pushed counts everything once.
TEST_P(NodeLoss, PushWithoutCreditEndsInADeadlineAndCanBeRepeated) {
  cxx::JobSpec job = SmallJob(2);
  job.overflow_bytes = 0;
  job.slots_per_worker = 2;
  job.optimizer = LUWU_SGD;
  job.reduction = LUWU_SUM;
  cxx::Session first = Open(job, 0);
  cxx::Session second = Open(job, 1);
  LoadAll(first, job);
  first.begin_step(0, {cxx::sgd(1.0)});
  second.begin_step(0, {cxx::sgd(1.0)});
  std::vector<float> g0 = Values(1, 677), g1 = Values(2, 677);
  const luwu_segment s0 = cxx::segment(g0.data(), 677);
  const luwu_segment s1 = cxx::segment(g1.data(), 677);
  EXPECT_EQ(luwu_push(second.handle(), 3, &s1, 1, LUWU_PUSH_CLOSE, 300), LUWU_E_DEADLINE);
  // Known are the layer, the shard and the slots; who is waited for only the daemon knows.
  const std::string text = luwu_last_error();
  for (const char* part :
       {"layer 'many', shard ", "no free slot", "all 2 slots", "luwuctl status"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("workers that have not pushed"), std::string::npos) << text;
  EXPECT_EQ(luwu_close_layer(second.handle(), 3, 300), LUWU_E_STATE) << luwu_last_error();
  std::thread other([&] { first.push(3, {s0}, LUWU_PUSH_CLOSE); });
  int32_t repeated = luwu_push(second.handle(), 3, &s1, 1, LUWU_PUSH_CLOSE, 30'000);
  other.join();
  ASSERT_EQ(repeated, LUWU_OK) << luwu_last_error();
  for (cxx::Session* session : {&first, &second}) {
    for (const uint32_t layer : {0u, 1u, 2u, 4u}) session->close_layer(layer);
  }
  std::thread committing([&] { EXPECT_EQ(first.commit(0).outcome, LUWU_APPLIED); });
  EXPECT_EQ(second.commit(0).outcome, LUWU_APPLIED);
  committing.join();
  std::vector<float> weights(677);
  first.fetch(3, 1, {cxx::segment(weights.data(), 677)});
  const std::vector<float> before = Values(1003, 677);
  for (size_t i = 0; i < 577; ++i) {
    ASSERT_EQ(weights[i], before[i] - (g0[i] + g1[i])) << "element " << i;
  }
}

// A daemon that hangs: the call ends at its deadline, and what it had asked for is not written
// into the caller's memory afterwards. When the daemon goes on, so does the session.
TEST_P(NodeLoss, HangingDaemonEndsCallsAtTheirDeadline) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job, 0);
  LoadAll(session, job);
  cluster_.Pause(1);
  std::vector<float> values(677, -7);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  const int32_t status = luwu_fetch(session.handle(), 3, 0, &segment, 1, 300);
  if (GetParam() != LUWU_TRANSPORT_TCP) {
    EXPECT_EQ(status, LUWU_OK);  // the daemon takes no part in it
  } else {
    EXPECT_EQ(status, LUWU_E_DEADLINE) << luwu_last_error();
    EXPECT_EQ(luwu_fetch(session.handle(), 3, 0, &segment, 1, 100), LUWU_E_DEADLINE)
        << luwu_last_error();  // again, now that its link is down
  }
  const luwu_hyper group = cxx::adamw(1e-2);
  EXPECT_EQ(luwu_begin_step(session.handle(), 0, &group, 1, 300), LUWU_E_DEADLINE)
      << luwu_last_error();
  std::fill(values.begin(), values.end(), -7.0f);
  cluster_.Resume(1);
  session.begin_step(0, {group}, 30'000);
  EXPECT_EQ(values, std::vector<float>(677, -7.0f));
  session.fetch(3, 0, {segment}, 30'000);
  EXPECT_EQ(values, Values(1003, 677));
}

TEST_P(NodeLoss, DeadDaemonAtOpenIsNamed) {
  const std::string endpoints = cluster_.endpoints();
  cluster_.Kill(1);
  try {
    Open(SmallJob(1), 0);
    FAIL() << "opened on a dead node";
  } catch (const cxx::Error& error) {
    EXPECT_EQ(error.code(), LUWU_E_NODE_LOST) << error.what();
    EXPECT_NE(std::string(error.what()).find("n1"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, NodeLoss, ::testing::ValuesIn(TestedTransports()),
                         [](const auto& info) { return TransportName(info.param); });

}  // namespace
}  // namespace luwu::testing
