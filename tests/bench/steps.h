// Whole training steps of the bench job, with their updates, CPU time and small fetches.
#pragma once

#include "tests/bench/daemons.h"
#include "tests/bench/report.h"

namespace luwu::bench {

// Appends to report->steps. The first step warms up and is dropped.
Status RunSteps(const TrainOptions& options, StopCheck stop, Daemons* daemons, Report* report);

}  // namespace luwu::bench
