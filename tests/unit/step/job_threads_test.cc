// Workers on threads of their own, with housekeeping, status and readers in between: for the thread
// sanitizer, and for the bits, which must not depend on any of it.
#include <atomic>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"
#include "tests/unit/step/job_model.h"

namespace luwu {
namespace {

using fakes::AdamHyper;
using fakes::CommitWait;
using fakes::FakeWorker;
using fakes::JobWorld;

constexpr uint32_t kWorld = 3;
constexpr uint32_t kLayers = 4;
constexpr uint64_t kElements = 150;
constexpr uint64_t kSteps = 12;
constexpr uint32_t kMicroSteps = 2;

std::vector<float> Gradient(uint64_t step, uint32_t rank, uint32_t layer, uint32_t micro_step) {
  std::vector<float> values(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    const uint64_t mixed = (i + 1) * 2654435761u + step * 97 + rank * 31 + layer * 7 + micro_step;
    values[i] = float(int(mixed % 2001) - 1000) / 499.0f;
  }
  return values;
}

JobSpec Spec() {
  std::vector<LayerSpec> layers;
  for (uint32_t i = 0; i < kLayers; ++i)
    layers.push_back(fakes::Layer("l" + std::to_string(i), kElements));
  JobSpec spec = fakes::SmallSpec(kWorld, std::move(layers));
  spec.slots_per_worker = 3;
  return spec;
}

// Every worker has its own order of layers. Worker 2 is replaced in the middle of every third step.
void PlayWorker(JobWorld* world, uint32_t rank) {
  uint64_t restarts = 0;
  auto worker = world->Join(rank, restarts, rank % 2 == 0);
  for (uint64_t step = 0; step < kSteps; ++step) {
    bool replace = rank == 2 && step % 3 == 0;
    for (;;) {
      ASSERT_TRUE(worker->Begin(step, {AdamHyper()}).ok());
      for (uint32_t i = 0; i < kLayers && !(replace && i == 2); ++i) {
        const uint32_t layer = rank == 0 ? i : kLayers - 1 - i;
        for (uint32_t micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
          const std::vector<float> values = Gradient(step, rank, layer, micro_step);
          for (uint32_t shard = 0; shard < 3; ++shard) {
            worker->Send({step, layer, shard, micro_step, micro_step + 1 == kMicroSteps, shard == 0,
                          &values});
          }
        }
      }
      if (!replace) break;
      replace = false;
      const auto former = std::move(worker);
      worker = world->Join(rank, ++restarts, step % 2 == 0);
      ASSERT_TRUE(worker->open_status().ok()) << ToString(worker->open_status());
    }
    CommitWait wait;
    world->job().AwaitCommit(worker->session_ptr(), step, TimePoint::max(), wait.Callback());
    StatusOr<CommitResult> result = wait.Wait();
    while (CodeOf(result.status()) == ErrorCode::kWorkerLost) {  // worker 2 is coming back
      CommitWait again;
      world->job().AwaitCommit(worker->session_ptr(), step, TimePoint::max(), again.Callback());
      result = again.Wait();
    }
    ASSERT_TRUE(result.ok()) << ToString(result.status());
  }
}

TEST(JobThreads, ConcurrentWorkersAndHousekeepingGiveTheBitsOfTheModel) {
  JobWorld world(Spec());
  world.LoadAll(
      [](uint32_t layer, uint64_t element) { return float(layer) + float(element) / 64; });
  std::atomic<bool> done{false};
  std::thread housekeeping([&] {
    while (!done) {
      world.job().Tick();
      (void)world.job().Snapshot();
      std::this_thread::yield();
    }
  });
  std::thread reader([&] {
    while (!done) {
      EXPECT_TRUE(world.ReadLayer(1, Quantity::kMoment2).ok());
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> workers;
  for (uint32_t rank = 0; rank < kWorld; ++rank) workers.emplace_back(PlayWorker, &world, rank);
  for (std::thread& worker : workers) worker.join();
  done = true;
  housekeeping.join();
  reader.join();

  JobModel model(world.job().spec());
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint64_t i = 0; i < kElements; ++i)
      model.array(layer, 0)[i] = float(layer) + float(i) / 64;
  }
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<std::unique_ptr<std::vector<float>>> values;
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
          values.push_back(
              std::make_unique<std::vector<float>>(Gradient(step, rank, layer, micro_step)));
          for (uint32_t shard = 0; shard < 3; ++shard) {
            model.Push(layer, shard, micro_step, rank, values.back().get());
          }
        }
      }
    }
    model.EndStep({AdamHyper()});
  }
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t array = 0; array < 3; ++array) {
      const auto read = world.ReadLayer(layer, static_cast<Quantity>(array + 1));
      ASSERT_TRUE(read.ok());
      EXPECT_EQ(std::memcmp(read->data(), model.array(layer, array).data(), kElements * 4), 0)
          << "layer " << layer << " array " << array;
    }
  }
}

}  // namespace
}  // namespace luwu
