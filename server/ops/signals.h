// Termination signals, waited for by the main thread instead of handled: no code of ours runs in a
// signal handler. SIGTERM, SIGINT and, without a file to read again, SIGHUP ask for a clean stop; a
// further one ends the process at once, with a line in the log, and so does a stop that takes too
// long.
//
// Main thread only.
#pragma once

#include <thread>

#include "common/base/unique_fd.h"

namespace luwu {

// Blocks the termination signals in the calling thread and so in every thread started after it, and
// ignores SIGPIPE (a peer that goes away is a write error). Call it first in main().
void BlockTerminationSignals();

// Waits for a signal and returns its number.
int WaitForSignal();

// Exit status of a stop that was cut short.
inline constexpr int kExitForced = 3;

// While it lives, a further termination signal, or the end of `drain_seconds` (a stop that hangs
// must not outlive the operator's patience), is logged and ends the process with kExitForced. One
// thread, "luwu-signal". Afterwards the signals have their default action.
class StopWatch {
 public:
  explicit StopWatch(unsigned drain_seconds);
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  void Run(unsigned drain_seconds);

  const UniqueFd signals_;  // signalfd
  const UniqueFd stopped_;  // eventfd
  std::thread thread_;
};

}  // namespace luwu
