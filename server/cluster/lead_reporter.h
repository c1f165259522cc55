// The StepReporter of a job on its lead node: its report goes straight to the coordinator. Other
// nodes report over gRPC (server/service).
#pragma once

#include <cstdint>
#include <memory>

#include "server/cluster/commit_coordinator.h"
#include "server/step/step_reporter.h"

namespace luwu {

// Reports as node `self`, and waits as long as it takes. Shares the coordinator with the service
// that takes the other nodes' reports.
std::unique_ptr<StepReporter> MakeLeadReporter(std::shared_ptr<CommitCoordinator> coordinator,
                                               uint64_t epoch, uint32_t self);

}  // namespace luwu
