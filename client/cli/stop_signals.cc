#include "client/cli/stop_signals.h"

#include <cerrno>

namespace luwu::cli {

void StopSignals::Install() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  installed_ = true;
}

bool StopSignals::Requested() { return WaitFor(std::chrono::nanoseconds(0)); }

bool StopSignals::WaitFor(std::chrono::nanoseconds time) {
  if (!installed_ || requested_) return requested_;
  const timespec timeout = {.tv_sec = time.count() / 1'000'000'000,
                            .tv_nsec = time.count() % 1'000'000'000};
  int taken = 0;
  do {
    taken = sigtimedwait(&signals_, nullptr, &timeout);
  } while (taken < 0 && errno == EINTR);
  requested_ = taken > 0;
  return requested_;
}

}  // namespace luwu::cli
