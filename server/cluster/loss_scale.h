// The dynamic loss scale of a job, in the manner of torch.cuda.amp.GradScaler: after a step with
// non-finite gradients it is multiplied by `backoff_factor`, after `growth_interval` applied steps
// in a row by `growth_factor`; the products are taken in double and rounded to float32. It stays a
// normal float32: growth that would overflow does not happen, backoff stops at the smallest one.
//
// Owned by the job's coordinator, which restores it with the point that a job comes back to. Pure
// logic, not thread-safe.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "server/step/step_reporter.h"

namespace luwu {

class LossScale {
 public:
  explicit LossScale(const LossScaling& options)
      : options_(options), value_(InitialLossScale(options)) {}

  // As it was: what value() and finite_steps() said.
  LossScale(const LossScaling& options, float value, uint32_t finite_steps)
      : options_(options), value_(value), applied_in_a_row_(finite_steps) {}

  float value() const { return value_; }
  // Applied in a row since the last change.
  uint32_t finite_steps() const { return applied_in_a_row_; }

  void Update(bool finite) {
    if (options_.initial_scale == 0) return;
    if (!finite) {
      applied_in_a_row_ = 0;
      const auto smaller = static_cast<float>(double(value_) * options_.backoff_factor);
      value_ = std::isnormal(smaller) ? smaller : std::numeric_limits<float>::min();
      return;
    }
    if (options_.growth_interval == 0 || ++applied_in_a_row_ < options_.growth_interval) return;
    applied_in_a_row_ = 0;
    const auto larger = static_cast<float>(double(value_) * options_.growth_factor);
    if (std::isfinite(larger)) value_ = larger;
  }

 private:
  LossScaling options_;
  float value_;
  uint32_t applied_in_a_row_ = 0;
};

}  // namespace luwu
