// How many lines strangers may have written: `burst` at once, then `per_second` on average. What is
// left out is counted and told with the next line, so that a flood fills neither disk nor journal
// and still shows its size.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "common/base/clock.h"

namespace luwu {

class LogBudget {
 public:
  LogBudget(uint32_t burst, uint32_t per_second)
      : burst_(burst), per_second_(per_second), allowance_(burst) {}

  // Whether a line may be written at `now`, which never goes back; *left_out: how many were not
  // since the last one that was.
  bool Take(TimePoint now, uint64_t* left_out) {
    if (!std::exchange(begun_, true)) last_ = now;
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    allowance_ = std::min<double>(burst_, allowance_ + seconds * per_second_);
    if (allowance_ < 1) {
      ++left_out_;
      return false;
    }
    allowance_ -= 1;
    *left_out = std::exchange(left_out_, 0);
    return true;
  }

 private:
  const uint32_t burst_;
  const uint32_t per_second_;
  double allowance_;
  bool begun_ = false;
  TimePoint last_;
  uint64_t left_out_ = 0;
};

}  // namespace luwu
