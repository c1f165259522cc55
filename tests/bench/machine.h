// The machine of a run, and how busy others kept it meanwhile: without that a figure says little.
#pragma once

#include <cstdint>
#include <string>

#include "tests/bench/link.h"

namespace luwu::bench {

struct MachineInfo {
  uint32_t cpus = 0;
  std::string cpu_model;
  uint64_t memory_bytes = 0;
  std::string kernel;
};
MachineInfo DescribeMachine();
Json ToJson(const MachineInfo& machine);

// Made at the start of a run.
class OthersMeter {
 public:
  OthersMeter();
  // Share of all CPU time since then that went to processes that are neither this one nor children
  // that it has waited for; 0 to 1. Time stolen by the host counts as theirs.
  double Share() const;

 private:
  double busy_s_ = 0;
  double total_s_ = 0;
  double own_s_ = 0;
};

}  // namespace luwu::bench
