// `luwuctl import` and `luwuctl export`: asks the daemons to read or write safetensors files, shows
// how far they are, and tells them to clean up when it goes wrong. The values pass from the files
// to the daemons and back, never through here.
#pragma once

#include "client/cli/options.h"
#include "client/cli/stop_signals.h"

namespace luwu::cli {

// Both return the exit code; what they have to say is printed. `stop` is installed.
int Import(const Options& options, StopSignals* stop);
int Export(const Options& options, StopSignals* stop);

}  // namespace luwu::cli
