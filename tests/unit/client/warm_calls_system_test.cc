// Calls that have warmed up allocate nothing.
#include "tests/fakes/allocation_counter.h"
#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

// The aim for a training loop: after the first rounds, shm fetches and pushes allocate nothing.
TEST(WarmCalls, DoNotAllocateOverSharedMemory) {
  DaemonCluster cluster(LUWU_LUWUD, {.nodes = 2});
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session(
      {.endpoints = cluster.endpoints(), .job = job, .transport = LUWU_TRANSPORT_SHM});
  LoadAll(session, job);
  std::vector<float> values(677);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  std::vector<uint64_t> allocations;
  for (uint64_t step = 0; step < 6; ++step) {
    session.begin_step(step, {cxx::adamw(1e-2)});
    StartCountingAllocations();
    const int32_t fetched = luwu_fetch(session.handle(), 3, step, &segment, 1, 10'000);
    const int32_t pushed = luwu_push(session.handle(), 3, &segment, 1, LUWU_PUSH_CLOSE, 10'000);
    allocations.push_back(StopCountingAllocations());
    cxx::check(fetched);
    cxx::check(pushed);
    for (const uint32_t layer : {0u, 1u, 2u, 4u}) session.close_layer(layer);
    session.commit(step);
  }
  EXPECT_GT(allocations.front(), 0u);  // the counter does see the library's
  EXPECT_EQ(allocations.back(), 0u);
}

}  // namespace
}  // namespace luwu::testing
