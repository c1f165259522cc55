// A synthetic worker process: plays one rank of a job through the C ABI, on the driver's commands.
// All its buffers are mapped and touched before the first measured phase.
//
// Commands and their parameters:
//   open {job, rank, endpoints, transport, connections}   finish_load   wait_loaded
//   begin {step}   commit {step}   absent   close
//   push   fetch {version}   both {version}   view {version}   small {version, count}
//   step {step, compute_ms}
// Each transfer replies {"begin", "end"} in MonotonicSeconds().
#pragma once

#include "common/base/unique_fd.h"

namespace luwu::bench {

void RunWorker(UniqueFd link);

}  // namespace luwu::bench
