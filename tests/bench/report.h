// The figures of a run, and how they are summed up: medians over rounds, and ratios taken round by
// round, because the machine's speed drifts more than the ratios do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/cost.h"
#include "tests/bench/daemons.h"
#include "tests/bench/machine.h"
#include "tests/bench/pairs.h"
#include "tests/bench/train_options.h"

namespace luwu::bench {

struct TransferRound {
  // Yardsticks of this round.
  Cost memcpy, ring_parked, ring, ring_update, socket_one_way, socket_both_ways;
  Latency echo;
  // LuWu.
  Cost push;             // into the slots, where the bytes stay
  Cost push_and_update;  // until the daemons have read them in place, updated and committed
  Cost fetch;
  Cost both_ways;
  Latency small_fetch;
  Cost view;  // shm only: bytes made visible
  bool view_same_addresses = false;
};

struct StepSample {
  double seconds = 0;
  double exposed_update_s = 0;  // from the last push of the last worker to its commit
  double fetch_wait_s = 0;      // mean of the workers
  uint64_t fetched_bytes = 0;   // of all workers
  uint64_t pushed_bytes = 0;
  UpdateCounts updates;
  double worker_cpu_s = 0;
  double daemon_cpu_s = 0;
  Latency small_fetch;

  double fetch_gb_per_s() const;
  double push_gb_per_s() const;
  double hidden_share() const;  // of the updates' time, under compute and transfers
};

struct Report {
  TrainOptions options;
  MachineInfo machine;
  double others_cpu_share = 0;  // OthersMeter::Share of the whole run
  uint64_t params = 0;
  bool has_view = false;
  uint64_t transfer_layers = 0;
  std::vector<TransferRound> rounds;
  std::vector<StepSample> steps;

  double Median(const std::function<double(const TransferRound&)>& value) const;
  double StepMedian(const std::function<double(const StepSample&)>& value) const;
  // Bytes that an update reads and writes in memory, for all updates of a step, per second of one
  // update thread.
  double UpdateGbPerThreadSecond(const StepSample& step) const;
};

// One aim of the project and how this run did.
struct Aim {
  std::string name;
  double value = 0;
  double bound = 0;
  bool at_least = true;  // else at most
  bool met() const { return at_least ? value >= bound : value <= bound; }
};
std::vector<Aim> AimsOf(const Report& report);

Json ReportJson(const Report& report);
std::string ReportText(const Report& report);

}  // namespace luwu::bench
