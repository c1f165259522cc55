// Monotonic time behind an interface, so that lease and deadline logic runs under a fake clock.
// Deadlines are absolute TimePoints; durations carry their unit in the name.
#pragma once

#include <chrono>
#include <cstdint>

namespace luwu {

using TimePoint = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

inline TimePoint DeadlineAfter(uint64_t timeout_ms) {
  return std::chrono::steady_clock::now() + Milliseconds(timeout_ms);
}

// Whole milliseconds until `deadline`, 0 when it has passed.
inline uint64_t MillisecondsUntil(TimePoint deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
  return left.count() > 0 ? static_cast<uint64_t>(left.count()) : 0;
}

}  // namespace luwu
