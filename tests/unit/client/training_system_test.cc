// Whole training runs through real daemons: the result must not depend on transport, number of
// daemons, kind of call, or on what the data plane loses, repeats and delays.
#include <atomic>
#include <cctype>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

constexpr uint32_t kWorkers = 2;

// Runs `body` for each rank in a thread of its own; rethrows the first exception.
void RunWorkers(uint32_t workers, const std::function<void(uint32_t)>& body) {
  std::vector<std::exception_ptr> failures(workers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

struct Setting {
  luwu_transport transport = LUWU_TRANSPORT_SHM;
  uint32_t nodes = 1;
  std::string fault_plan = {};
  bool async_calls = false;
  uint32_t verify = 0;
};

struct Outcome {
  std::vector<uint32_t> bits;
  uint64_t retries = 0;
  int links_lost = 0;
  uint64_t pushed_bytes = 0;
};

Outcome Train(const Setting& setting) {
  DaemonCluster cluster(LUWU_LUWUD, {.nodes = setting.nodes});
  const cxx::JobSpec job = SmallJob(kWorkers);
  Outcome outcome;
  // The library logs each lost link.
  std::atomic<int> links_lost{0};
  luwu_set_log_sink(
      [](int32_t, const char* line, void* context) {
        if (std::string(line).find("link_down") == 0) ++*static_cast<std::atomic<int>*>(context);
      },
      &links_lost, 2);
  RunWorkers(kWorkers, [&](uint32_t rank) {
    cxx::Session session({.endpoints = cluster.endpoints(),
                          .job = job,
                          .rank = rank,
                          .transport = setting.transport,
                          .verify_served_crc = setting.verify,
                          .fault_plan = setting.fault_plan});
    EXPECT_EQ(session.info().shm_nodes,
              setting.transport == LUWU_TRANSPORT_SHM ? setting.nodes : 0u);
    if (rank == 0) LoadAll(session, job);
    session.wait_loaded();
    TrainWorker(session, job, rank, {.async_calls = setting.async_calls});
    if (rank != 0) return;
    outcome.bits = Fingerprint(session, job);
    outcome.retries = session.info().retries;
    outcome.pushed_bytes = session.info().pushed_bytes;
  });
  luwu_set_log_sink(nullptr, nullptr, 0);
  outcome.links_lost = links_lost;
  return outcome;
}

const Outcome& Reference() {
  static const Outcome reference = Train({});
  return reference;
}

TEST(TrainingRun, ReferenceReallyTrains) {
  const std::vector<uint32_t>& bits = Reference().bits;
  ASSERT_GT(bits.size(), 0u);
  const std::vector<float> initial = Values(1000, 63);
  EXPECT_NE(std::memcmp(bits.data(), initial.data(), 63 * sizeof(float)), 0);
  EXPECT_EQ(Reference().retries, 0u);
  // 4 steps of 2 micro-batches, every shard whole.
  EXPECT_EQ(Reference().pushed_bytes, 4u * 2 * (63 + 64 + 65 + 677 + 300) * sizeof(float));
}

TEST(TrainingRun, SameBitsForEveryTransportAndNumberOfDaemons) {
  for (const luwu_transport transport : TestedTransports()) {
    for (const uint32_t nodes : {1u, 2u, 3u}) {
      EXPECT_EQ(Train({.transport = transport, .nodes = nodes}).bits, Reference().bits)
          << "transport " << transport << ", nodes " << nodes;
    }
  }
}

TEST(TrainingRun, SameBitsForAsynchronousCallsAndEveryVerification) {
  for (const luwu_transport transport : TestedTransports()) {
    EXPECT_EQ(Train({.transport = transport, .nodes = 2, .async_calls = true}).bits,
              Reference().bits);
    EXPECT_EQ(Train({.transport = transport, .nodes = 2, .verify = 1}).bits, Reference().bits);
    EXPECT_EQ(Train({.transport = transport, .nodes = 2, .verify = 2}).bits, Reference().bits);
  }
}

class TrainingUnderFaults
    : public ::testing::TestWithParam<std::tuple<luwu_transport, const char*>> {};

TEST_P(TrainingUnderFaults, SameBits) {
  const auto [transport, plan] = GetParam();
  const Outcome outcome = Train({.transport = transport, .nodes = 2, .fault_plan = plan});
  EXPECT_EQ(outcome.bits, Reference().bits);
  const std::string text = plan;
  const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  // What was lost was really repeated, or the plan tests nothing.
  if (has("drop") || has("lose")) {
    EXPECT_GT(outcome.retries, 0u);
  }
  EXPECT_EQ(outcome.links_lost > 0, has("disconnect"));
}

std::string NameOf(const ::testing::TestParamInfo<TrainingUnderFaults::ParamType>& info) {
  std::string name = TransportName(std::get<0>(info.param)) + "_";
  for (const char c : std::string(std::get<1>(info.param))) name += std::isalnum(c) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, TrainingUnderFaults,
    ::testing::Combine(::testing::ValuesIn(TestedTransports()),
                       ::testing::Values("seed=3,duplicate=400", "seed=4,delay=300,delay_ms=3",
                                         "seed=5,drop=250", "seed=6,lose=250",
                                         "seed=7,disconnect_after=37",
                                         "seed=8,duplicate=200,delay=100,delay_ms=2,drop=100,"
                                         "lose=100,disconnect_after=50")),
    NameOf);

// An oracle of its own: with these numbers SGD is exact in float.
TEST(TrainingRun, OneExactStepOfSgdWithAndWithoutAGradient) {
  for (const luwu_transport transport : TestedTransports()) {
    DaemonCluster cluster(LUWU_LUWUD, {.nodes = 2});
    cxx::JobSpec job = SmallJob(kWorkers);
    job.optimizer = LUWU_SGD;
    RunWorkers(kWorkers, [&](uint32_t rank) {
      cxx::Session session(
          {.endpoints = cluster.endpoints(), .job = job, .rank = rank, .transport = transport});
      if (rank == 0) LoadAll(session, job);
      session.wait_loaded();
      session.begin_step(0, {cxx::sgd(0.5)});
      std::vector<float> g0 = Values(1, 677), g1 = Values(2, 677);
      std::vector<float>& mine = rank == 0 ? g0 : g1;
      session.push(3, {cxx::segment(mine.data(), 577)}, 0);  // the frozen tail is not covered
      session.push(3, {cxx::segment(mine.data(), 677)}, LUWU_PUSH_CLOSE);
      for (const uint32_t absent : {0u, 1u, 2u, 4u}) session.close_layer(absent);
      ASSERT_EQ(session.commit(0).outcome, LUWU_APPLIED);
      std::vector<float> weights(677), untouched(65);
      session.fetch(3, 1, {cxx::segment(weights.data(), weights.size())});
      session.fetch(2, 1, {cxx::segment(untouched.data(), untouched.size())});
      const std::vector<float> before = Values(1003, 677);
      for (size_t i = 0; i < weights.size(); ++i) {
        const float gradient = i < 577 ? (2 * g0[i] + 2 * g1[i]) * 0.5f : 0;
        ASSERT_EQ(weights[i], before[i] - 0.5f * gradient) << "element " << i;
      }
      EXPECT_EQ(untouched, Values(1002, 65));
    });
  }
}

// Pushing in place is only another way to fill the slots.
TEST(TrainingRun, InPlacePushesGiveTheSameBits) {
  for (const luwu_transport transport : TestedTransports()) {
    for (const std::string plan : {"", "seed=9,drop=200,lose=200,duplicate=200"}) {
      std::vector<std::vector<float>> results;
      for (const bool in_place : {false, true}) {
        DaemonCluster cluster(LUWU_LUWUD, {.nodes = 2});
        cxx::JobSpec job = SmallJob(1);
        cxx::Session session({.endpoints = cluster.endpoints(),
                              .job = job,
                              .transport = transport,
                              .fault_plan = plan});
        LoadAll(session, job);
        session.begin_step(0, {cxx::adamw(1e-2)});
        std::vector<float> gradient = Values(5, 677);
        for (const uint32_t flags : {0u, uint32_t{LUWU_PUSH_CLOSE}}) {
          if (!in_place) session.push(3, {cxx::segment(gradient.data(), 677)}, flags);
          for (uint64_t at = 0; in_place && at < gradient.size();) {
            luwu_slot_piece pieces[3];
            uint32_t count = 3;
            luwu_op op = 0;
            cxx::check(luwu_push_inplace_begin(session.handle(), 3, at, pieces, &count, flags,
                                               10'000, &op));
            ASSERT_GE(count, 1u);
            for (uint32_t i = 0; i < count; ++i) {
              ASSERT_EQ(pieces[i].offset, at);
              std::memcpy(pieces[i].data, &gradient[at], pieces[i].count * sizeof(float));
              at += pieces[i].count;
            }
            cxx::check(luwu_push_inplace_end(op));
            cxx::check(luwu_wait(op, 10'000));
          }
        }
        for (const uint32_t absent : {0u, 1u, 2u, 4u}) session.close_layer(absent);
        ASSERT_EQ(session.commit(0).outcome, LUWU_APPLIED);
        std::vector<float>& weights = results.emplace_back(677);
        session.fetch(3, 1, {cxx::segment(weights.data(), weights.size())});
      }
      EXPECT_EQ(results[0], results[1]);
      EXPECT_NE(results[0], Values(1003, 677));
    }
  }
}

}  // namespace
}  // namespace luwu::testing
