#include "server/ops/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"

namespace luwu {
namespace {

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  return signals;
}

[[noreturn]] void EndNow(const std::string& why) {
  constexpr unsigned kLogSeconds = 2;
  ::alarm(kLogSeconds);  // even if nobody reads the log
  LogError("stop_forced", "reason=\"{}\" exit_status={}", why, kExitForced);
  ::_exit(kExitForced);
}

void EndIfSignalled(int signal_fd) {
  signalfd_siginfo info = {};
  if (::read(signal_fd, &info, sizeof info) != sizeof info) return;
  EndNow(fmt::format("SIG{} while stopping", ::sigabbrev_np(static_cast<int>(info.ssi_signo))));
}

}  // namespace

void BlockTerminationSignals() {
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  // A parent may have left them ignored, and an ignored signal is never waited for with success.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGALRM}) ::signal(number, SIG_DFL);
}

int WaitForSignal() {
  const sigset_t signals = TerminationSignals();
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  return number;
}

StopWatch::StopWatch(unsigned drain_seconds)
    : signals_([] {
        const sigset_t signals = TerminationSignals();
        return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
      }()),
      stopped_(::eventfd(0, EFD_CLOEXEC)) {
  LUWU_CHECK(signals_.get() >= 0 && stopped_.get() >= 0, "descriptors for the stop");
  EndIfSignalled(signals_.get());  // it came together with the first
  thread_ = std::thread([this, drain_seconds] { Run(drain_seconds); });
  pthread_setname_np(thread_.native_handle(), "luwu-signal");
}

StopWatch::~StopWatch() {
  ::eventfd_write(stopped_.get(), 1);
  thread_.join();
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void StopWatch::Run(unsigned drain_seconds) {
  const TimePoint deadline = DeadlineAfter(drain_seconds * uint64_t{1000});
  pollfd either[] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                     {.fd = stopped_.get(), .events = POLLIN, .revents = 0}};
  while (true) {
    const int left_ms = static_cast<int>(MillisecondsUntil(deadline));
    const int ready = ::poll(either, 2, left_ms);
    if (ready > 0 && either[1].revents != 0) return;
    EndIfSignalled(signals_.get());
    if (ready == 0 && left_ms == 0) EndNow(fmt::format("not stopped after {} s", drain_seconds));
  }
}

}  // namespace luwu
