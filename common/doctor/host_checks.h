// Judges the facts about a host. Pure functions; any thread.
#pragma once

#include "common/doctor/finding.h"
#include "common/doctor/host_facts.h"

namespace luwu::doctor {

// Who runs there.
struct HostNeeds {
  bool daemon = false;        // luwud, which raises its file limit itself; else a trainer
  uint64_t budget_bytes = 0;  // of the daemon's memory; 0: not known
};

// The least that RDMA is of use with: what a trainer registers for a few links
// (docs/operating/rdma.md). A daemon registers up to its budget.
inline constexpr uint64_t kTrainerPinnedBytes = uint64_t{64} << 20;

// One finding for each topic that applies, also when it is OK.
Findings CheckHost(const HostFacts& facts, const HostNeeds& needs);

}  // namespace luwu::doctor
