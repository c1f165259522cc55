// The whole daemon path of an update: two workers have filled their slots by shared memory; a third
// closes every layer, which sets all updates off; the clock stops when it has the commit, that is,
// when every new version is on its board. In the same round, the engine alone does the same update.
#pragma once

#include "tests/bench/optimizer/optimizer_bench.h"

namespace luwu::bench {

Status RunDaemonPath(const OptimizerBenchOptions& options, StopCheck stop,
                     DaemonPathResult* result);

}  // namespace luwu::bench
