// What one transfer cost: time, and CPU seconds of every process that took part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/bench/child.h"

namespace luwu::bench {

struct Cost {
  uint64_t bytes = 0;  // in one direction
  uint32_t directions = 1;
  double seconds = 0;
  double near_cpu_s = 0;  // the workers' side
  double far_cpu_s = 0;   // the daemons' side

  double gb_per_s() const { return static_cast<double>(bytes) / seconds / 1e9; }
  double cpu_s_per_gb() const {
    return (near_cpu_s + far_cpu_s) / (static_cast<double>(bytes) * directions / 1e9);
  }
};

using Processes = std::vector<const Process*>;
Processes ProcessesOf(std::span<const Child> children);
Processes ProcessesOf(std::span<const Process> processes);

// Reads the CPU clocks when made and again in Finish. The time is from the first "begin" to the
// last "end" of the replies.
class CostMeter {
 public:
  CostMeter(Processes near, Processes far);
  Cost Finish(uint64_t bytes, std::span<const Json> replies) const;

 private:
  Processes near_;
  Processes far_;
  double near_cpu_s_ = 0;
  double far_cpu_s_ = 0;
};

}  // namespace luwu::bench
