// `luwuctl checkpoint create|list|delete|restore`: asks the job's lead node, which carries it out
// on all nodes.
#pragma once

#include "client/cli/options.h"
#include "client/cli/stop_signals.h"

namespace luwu::cli {

// Returns the exit code; what it has to say is printed. `stop` is installed.
int Checkpoint(const Options& options, StopSignals* stop);

}  // namespace luwu::cli
