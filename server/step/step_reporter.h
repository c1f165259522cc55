// The seam between a job on this node and the agreement of all nodes on how a step ended. The lead
// node decides when every node has reported: applied if all saw finite gradients only, else skipped
// or failed as the job says; with the gradient norm, what each clip unit is multiplied with, and
// the next loss scale. Implemented by server/cluster (lead, logic only) and server/service (others,
// over gRPC).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/exact_sum.h"
#include "common/base/status.h"
#include "common/tensor/job_spec.h"

namespace luwu {

enum class Outcome : uint8_t { kUnspecified = 0, kApplied = 1, kSkipped = 2, kFailed = 3 };
std::string_view OutcomeName(Outcome outcome);

// Clip units: what shares one norm. One for scope none and global, else one for each group or each
// layer; numbered as these are.
uint32_t ClipUnits(const JobSpec& spec);
inline uint32_t ClipUnitOf(ClipScope scope, uint32_t layer, uint32_t group) {
  return scope == ClipScope::kGroup ? group : scope == ClipScope::kLayer ? layer : 0;
}
// One limit for each group with scope group, one in all with scope global and layer, none with
// scope none; from the step's hyper-parameters.
std::vector<double> NormLimits(const JobSpec& spec, const std::vector<HyperParameters>& groups);

// Of step 0; 1 without loss scaling.
inline float InitialLossScale(const LossScaling& options) {
  return options.initial_scale == 0 ? 1.0f : static_cast<float>(options.initial_scale);
}

// What a node has found in a step.
struct StepFindings {
  std::string non_finite;           // empty, or node, layer, tensor and rank in words
  std::vector<double> norm_limits;  // NormLimits
  std::vector<ExactSum> squares;    // of its gradients, by clip unit; of no use when non-finite
};

struct StepDecision {
  Outcome outcome = Outcome::kUnspecified;
  std::string culprit;  // empty for kApplied
  // Of the whole step, before clipping; NaN when it was not finite.
  double grad_norm = 0;
  // What the gradients of each clip unit are multiplied with, at most 1; empty when all are 1.
  std::vector<double> factors = {};
  float next_loss_scale = 1;  // 1 without loss scaling
  uint32_t finite_steps = 0;  // in a row, as the loss scale counts them, this one included

  double factor(uint32_t unit) const { return factors.empty() ? 1.0 : factors[unit]; }
};

using DecisionCallback = std::function<void(StatusOr<StepDecision>)>;
using DurableCallback = std::function<void(const Status&)>;

class StepReporter {
 public:
  virtual ~StepReporter() = default;
  // This node has done everything in `step` that comes before the decision. `done` runs once, on
  // any thread, possibly inside the call; an error means that no decision could be had (the caller
  // reports again while the job lives).
  virtual void Report(uint64_t step, const StepFindings& findings, DecisionCallback done) = 0;
  // This node has stored its part of the point `step` (the step computed with what is stored).
  // `done` runs once, like that of Report: when every node has stored its part.
  virtual void ReportDurable(uint64_t step, DurableCallback done) = 0;
};

}  // namespace luwu
