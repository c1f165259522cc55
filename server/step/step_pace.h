// How fast steps follow each other: the mean time from one decision to the next over the last ones,
// whatever lies between them (compute, input, waiting for workers). What a plan multiplies with;
// the time of a single step says little where every few steps write a durable point.
//
// Part of a job's counters. Allocates nothing. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace luwu {

class StepPace {
 public:
  static constexpr size_t kSteps = 64;

  // A step was decided.
  void Note(TimePoint now) {
    decided_at_[noted_ % decided_at_.size()] = now;
    ++noted_;
  }
  // Intervals that the mean is over: at most kSteps, 0 before the second decision.
  uint64_t steps() const {
    const uint64_t kept = noted_ < decided_at_.size() ? noted_ : decided_at_.size();
    return kept == 0 ? 0 : kept - 1;
  }
  double mean_seconds() const {
    if (steps() == 0) return 0;
    const uint64_t last = noted_ - 1;
    const std::chrono::duration<double> took = At(last) - At(last - steps());
    return took.count() / static_cast<double>(steps());
  }

 private:
  TimePoint At(uint64_t number) const { return decided_at_[number % decided_at_.size()]; }

  std::array<TimePoint, kSteps + 1> decided_at_ = {};
  uint64_t noted_ = 0;
};

}  // namespace luwu
