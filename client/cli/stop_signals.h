// SIGINT and SIGTERM as a question instead of a handler: they are blocked in every thread, and
// pending ones are taken when asked for. Install before any thread starts.
#pragma once

#include <signal.h>

#include <chrono>

namespace luwu::cli {

class StopSignals {
 public:
  // Without Install() no signal is blocked, and Requested() stays false.
  void Install();
  // True once a signal has come, and ever after.
  bool Requested();
  // Sleeps until the time is over or a signal comes; true when to stop.
  bool WaitFor(std::chrono::nanoseconds time);

 private:
  bool installed_ = false;
  bool requested_ = false;
  sigset_t signals_ = {};
};

}  // namespace luwu::cli
