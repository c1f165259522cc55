#include "server/ops/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <initializer_list>

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

}  // namespace

void BlockTerminationSignals() {
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  // A parent may have left them ignored, and an ignored signal is never waited for with success.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGALRM}) ::signal(number, SIG_DFL);
}

int WaitForTermination(unsigned drain_seconds) {
  const sigset_t signals = TerminationSignals();
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  ::alarm(drain_seconds);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return number;
}

}  // namespace luwu
