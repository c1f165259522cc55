// A clock that stands still until a test moves it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/clock.h"

namespace luwu::fakes {

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(std::chrono::hours(1000)) + Milliseconds(now_ms_.load());
  }
  void AdvanceMs(uint64_t ms) { now_ms_ += ms; }
  TimePoint AfterMs(uint64_t ms) const { return Now() + Milliseconds(ms); }

 private:
  std::atomic<uint64_t> now_ms_{0};
};

}  // namespace luwu::fakes
