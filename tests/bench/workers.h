// Worker processes of one bench job: started, opened, loaded.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/child.h"
#include "tests/bench/daemons.h"
#include "tests/bench/train_options.h"

namespace luwu::bench {

// One process for each rank, in rank order, all with readable weights (zeros).
StatusOr<std::vector<Child>> StartWorkers(const TrainOptions& options, const BenchJob& job,
                                          const Daemons& daemons, StopCheck stop);

}  // namespace luwu::bench
