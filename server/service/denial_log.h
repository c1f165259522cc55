// The audit lines of refused calls, as many as a log can take: a caller that repeats its call for
// ever must not fill a disk. What was left out is counted in the next line. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/base/log_budget.h"
#include "common/base/sync.h"

namespace luwu {

struct Denial {
  std::string identity;
  std::string method;
  std::string job;
  std::string why;
};

class DenialLog {
 public:
  static constexpr uint32_t kBurst = 1000;         // lines at once
  static constexpr uint32_t kLinesPerSecond = 10;  // on average

  // access_denied identity="..." rpc=... job="..." why="..."
  void Add(const Denial& denial) LUWU_EXCLUDES(mutex_);
  // Whether a line may be written now; else it is counted. For tests: at a time of their own.
  bool Enter(TimePoint now, uint64_t* left_out) LUWU_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  LogBudget budget_ LUWU_GUARDED_BY(mutex_){kBurst, kLinesPerSecond};
};

}  // namespace luwu
