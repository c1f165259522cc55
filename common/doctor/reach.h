// Whether tcp addresses take connections, all tried at once. Nothing is sent. Waits on the calling
// thread until the deadline at the latest, name lookup not counted.
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace luwu::doctor {

// One result for each "host:port", in order. kUnavailable or kDeadline says why not; of a name with
// several addresses one is enough.
std::vector<Status> Reach(const std::vector<std::string>& addresses, TimePoint deadline);

}  // namespace luwu::doctor
