// Named places in the code where a test can make things go wrong: an error, a delay, or the sudden
// end of the process. Configured before main() by the environment, or by a test:
//
//   LUWU_FAILPOINTS="persist.commit.before=kill@3;persist.write=error(ENOSPC)"
//   LUWU_FAILPOINT_LOG=<file>   the name of every point that is reached is appended once
//
// Actions: error(NAME or number), delay(MS), kill (SIGKILL of this process), off. With @N only the
// N-th time counts, without it every time. While nothing is configured, a point costs one relaxed
// load. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/status.h"

namespace luwu::failpoint {

// Replaces the configuration and the counts; "" turns all points off. kInvalidArgument.
Status Configure(const std::string& text);

// How often each point was reached since Configure.
std::map<std::string, uint64_t> Counts();

extern std::atomic<bool> active;

// 0, or the errno that is to be reported from here. Called through the macro.
int Hit(const char* name);

}  // namespace luwu::failpoint

#define LUWU_FAILPOINT(name) \
  (::luwu::failpoint::active.load(std::memory_order_relaxed) ? ::luwu::failpoint::Hit(name) : 0)
