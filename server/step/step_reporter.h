// The seam between a job on this node and the agreement of all nodes on how a step ended. The lead
// node decides when every node has reported: applied if all saw finite gradients only, else skipped
// or failed as the job says. Implemented by server/cluster (lead, logic only) and server/service
// (others, over gRPC).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace luwu {

enum class Outcome : uint8_t { kUnspecified = 0, kApplied = 1, kSkipped = 2, kFailed = 3 };
std::string_view OutcomeName(Outcome outcome);

struct StepDecision {
  Outcome outcome = Outcome::kUnspecified;
  std::string culprit;  // empty for kApplied
};

using DecisionCallback = std::function<void(StatusOr<StepDecision>)>;

class StepReporter {
 public:
  virtual ~StepReporter() = default;
  // This node has closed and updated everything in `step`; `non_finite` is empty or names node,
  // layer, tensor and rank. `done` runs once, on any thread, possibly inside the call; an error
  // means that no decision could be had (the caller reports again while the job lives).
  virtual void Report(uint64_t step, const std::string& non_finite, DecisionCallback done) = 0;
};

}  // namespace luwu
