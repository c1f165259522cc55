// The yardsticks as the driver sees them: as many pairs of agent processes as there are workers,
// all at work at once, each run costed like a run of LuWu.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "tests/bench/child.h"
#include "tests/bench/cost.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {

struct Latency {
  double p50_us = 0;
  double p99_us = 0;
};

class YardstickPairs {
 public:
  static StatusOr<std::unique_ptr<YardstickPairs>> Start(uint32_t count, StopCheck stop);

  // `bytes` is of each pair; costs are of all pairs together.
  StatusOr<Cost> Memcpy(uint64_t bytes);
  StatusOr<Cost> Ring(uint64_t bytes, RingUse use, DType wire);
  StatusOr<Cost> SocketOneWay(uint64_t bytes);
  StatusOr<Cost> SocketBothWays(uint64_t bytes);  // bytes of one direction
  StatusOr<Latency> Echo(uint64_t count);         // of the first pair, the others idle

 private:
  YardstickPairs() = default;
  Status Connect();
  StatusOr<Cost> Transfer(uint64_t bytes, const Json& near_command, const Json& far_command);

  std::vector<SharedMemory> rings_;
  std::vector<Child> near_;  // the worker's part
  std::vector<Child> far_;   // the daemon's part
  uint16_t echo_port_ = 0;
};

}  // namespace luwu::bench
