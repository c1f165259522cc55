// Who waits for the end of something, and how long: until the deadline, or until the caller has
// gone, which is looked at a few times a second.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/clock.h"

namespace luwu {

class Caller {
 public:
  // `gone` is called by whoever works for the caller; null: it never goes.
  explicit Caller(TimePoint deadline, std::function<bool()> gone = nullptr)
      : deadline_(deadline), gone_(std::move(gone)) {}

  TimePoint deadline() const { return deadline_; }
  bool gone() const { return gone_ && gone_(); }
  bool waits() const { return !gone() && MillisecondsUntil(deadline_) > 0; }
  // When to look again.
  TimePoint next_look() const { return std::min(deadline_, DeadlineAfter(kLookMs)); }

  static constexpr uint64_t kLookMs = 200;

 private:
  TimePoint deadline_;
  std::function<bool()> gone_;
};

}  // namespace luwu
