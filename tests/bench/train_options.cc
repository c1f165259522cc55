#include "tests/bench/train_options.h"

#include <algorithm>

#include "common/base/bytes.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kShardElements = 1 << 20;
constexpr uint64_t kShardsPerLayer = 8;
constexpr uint64_t kSmallLayerBytes = 4096;
constexpr uint32_t kSpareSlots = 8;
constexpr uint32_t kTrainingSlots = 16;  // the library's default
constexpr uint64_t kOverflowBytes = 64 * kMiB;

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint64_t ClusterBytes(const BenchJob& job, uint32_t daemons) {
  const uint64_t moments = job.adamw ? 8 : 0;
  const uint64_t state = (4 + moments) * (job.keep_undo_state ? 2 : 1);
  const uint64_t slot = job.shard_elements * job.wire_bytes() + 8192;
  return job.elements() * (state + 2 * job.wire_bytes()) +
         daemons * (job.world_size * job.slots_per_worker * slot + kOverflowBytes);
}

}  // namespace

uint64_t DaemonBytes(const TrainOptions& options) {
  const uint64_t larger = std::max(ClusterBytes(TransferJob(options), options.daemons),
                                   ClusterBytes(TrainingJob(options), options.daemons));
  // Shards do not divide evenly over the daemons; pages and headers come on top.
  return larger / options.daemons * 11 / 10 + 128 * kMiB;
}

BenchJob TransferJob(const TrainOptions& options) {
  BenchJob job;
  job.name = "bench-transfer";
  job.world_size = options.workers + 1;
  job.adamw = false;
  job.wire_dtype = options.wire_dtype;
  job.keep_undo_state = false;
  job.shard_elements = kShardElements;
  const uint64_t shards =
      std::max<uint64_t>(1, options.transfer_bytes / (kShardElements * job.wire_bytes()));
  for (uint64_t first = 0; first < shards; first += kShardsPerLayer) {
    job.layers.push_back({fmt::format("block.{}", first / kShardsPerLayer),
                          std::min(kShardsPerLayer, shards - first) * kShardElements});
  }
  job.layers.push_back({"small", kSmallLayerBytes / job.wire_bytes()});
  job.slots_per_worker = static_cast<uint32_t>(DivideUp(shards + 1, options.daemons)) + kSpareSlots;
  return job;
}

BenchJob TrainingJob(const TrainOptions& options) {
  BenchJob job;
  job.name = "bench-train";
  job.world_size = options.workers;
  job.wire_dtype = options.wire_dtype;
  job.layers = options.layers;
  job.layers.push_back({"small", kSmallLayerBytes / job.wire_bytes()});
  job.keep_undo_state = options.keep_undo_state;
  job.slots_per_worker = kTrainingSlots;
  job.shard_elements = kShardElements;
  return job;
}

}  // namespace luwu::bench
