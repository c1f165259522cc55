// How long steps took, from the first worker's begin to the decision: a histogram with fixed
// bounds, for dashboards.
//
// Part of a job's counters. Allocates nothing. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace luwu {

class StepTimes {
 public:
  // Upper bounds; the last count is of steps above them all.
  static constexpr std::array<double, 12> kBounds = {0.01, 0.03, 0.1, 0.3, 1,   3,
                                                     10,   30,   60,  120, 300, 1200};

  void Note(double seconds) {
    size_t at = 0;
    while (at < kBounds.size() && seconds > kBounds[at]) ++at;
    ++counts_[at];
    sum_seconds_ += seconds;
  }
  // Not cumulative.
  const std::array<uint64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum_seconds() const { return sum_seconds_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_ = {};
  double sum_seconds_ = 0;
};

}  // namespace luwu
