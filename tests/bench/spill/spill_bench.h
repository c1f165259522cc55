// `luwu-bench spill`: training with state on disk against the raw device, both in this process,
// pass by pass in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/child.h"
#include "tests/bench/command_line.h"
#include "tests/bench/machine.h"
#include "tests/bench/spill/spill_job.h"

namespace luwu::bench {

struct SpillBenchOptions : DeviceOptions {
  std::string engine = "extents";
  double oversubscription = 4;
};

// Seconds that the raw device takes for what a step moved, in the same round.
struct SpillRound {
  SpillStep step;
  double raw_seconds = 0;
  double ratio() const { return raw_seconds / step.seconds; }
};

struct SpillReport {
  SpillBenchOptions options;
  MachineInfo machine;
  double others_cpu_share = 0;
  bool direct = false;
  uint64_t memory_bytes = 0;
  TierSnapshot tiers;
  std::vector<double> raw_write_gb_per_s, raw_read_gb_per_s, raw_both_gb_per_s;  // of each way
  std::vector<SpillRound> streamed;         // no points, pushes as fast as they are taken
  std::vector<SpillRound> durable;          // a synced point after each step
  std::vector<SpillStep> after_checkpoint;  // steps right after one was taken, durable as above
  std::vector<double> checkpoint_seconds;
  std::vector<SpillStep> trained;  // two workers whose compute covers the device time
  double compute_seconds = 0;      // of these
  double write_amplification = 0;  // bytes that the process wrote / bytes of generations
  double space = 0;                // allocated / one generation of what is stored
  SpillJob::Recovery recovery;
};

Status RunSpillBench(const SpillBenchOptions& options, StopCheck stop, SpillReport* report);

Json SpillJson(const SpillReport& report);
std::string SpillText(const SpillReport& report);

}  // namespace luwu::bench
