// Asks all daemons of a cluster to examine themselves, and tries the way to each from this host.
// One thread; takes up to some of the command's timeouts, never longer.
#pragma once

#include <vector>

#include "client/cli/doctor_checks.h"
#include "client/cli/options.h"
#include "client/cli/stop_signals.h"

namespace luwu::cli {

// Every node of the lists that the endpoints gave, and each endpoint that gave none and is on no
// list.
std::vector<NodeFacts> AskCluster(const Options& options, StopSignals* stop);

}  // namespace luwu::cli
