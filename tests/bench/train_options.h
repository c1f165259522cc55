// What `luwu-bench train` was asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/layer_table.h"

namespace luwu::bench {

struct TrainOptions {
  std::vector<BenchLayer> layers;
  uint32_t workers = 1;
  uint32_t daemons = 1;
  std::string transport = "shm";
  std::string wire_dtype = "bf16";
  uint32_t connections = 0;             // tcp; 0: the library's default
  uint32_t update_threads = 0;          // of each daemon; 0: one per core
  double compute_ms = 5;                // of a layer's forward; its backward takes twice as long
  uint64_t steps = 5;                   // 0: no training steps
  uint64_t rounds = 5;                  // 0: no isolated transfers
  uint64_t transfer_bytes = 256 << 20;  // of each worker in each isolated transfer
  uint64_t small_fetches = 500;         // for each latency figure
  bool keep_undo_state = true;
  std::string luwud;
};

// Bytes that one daemon needs for the larger of the two jobs of a run, with room to spare.
uint64_t DaemonBytes(const TrainOptions& options);

// The job of the isolated transfers: whole shards, plain SGD without undo (the least update there
// is), one small layer for latencies, and slots for everything at once. Rank 0 is not measured: it
// holds back, so that the pushes of the others stay in their slots until it closes.
BenchJob TransferJob(const TrainOptions& options);
// The layers asked for, and the small one.
BenchJob TrainingJob(const TrainOptions& options);

}  // namespace luwu::bench
