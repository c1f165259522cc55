// Termination signals, waited for by the main thread instead of handled: no code of ours runs in a
// signal handler. The first SIGTERM, SIGINT or SIGHUP asks for a clean stop; the second one ends
// the process at once (default action).
//
// Main thread only.
#pragma once

namespace luwu {

// Blocks the termination signals in the calling thread and so in every thread started after it, and
// ignores SIGPIPE (a peer that goes away is a write error). Call it first in main().
void BlockTerminationSignals();

// Waits for a termination signal and returns its number. From then on the next one kills, and so
// does SIGALRM after `drain_seconds`: a stop that hangs must not outlive the operator's patience.
int WaitForTermination(unsigned drain_seconds);

}  // namespace luwu
