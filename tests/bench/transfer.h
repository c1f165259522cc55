// The isolated transfers: push only, fetch only, both at once, a small fetch, and the yardsticks,
// interleaved in rounds.
#pragma once

#include "tests/bench/daemons.h"
#include "tests/bench/report.h"

namespace luwu::bench {

// Appends to report->rounds. The first round warms up and is dropped.
Status RunTransfers(const TrainOptions& options, StopCheck stop, Daemons* daemons, Report* report);

}  // namespace luwu::bench
