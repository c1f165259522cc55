#include "server/persist/scrubber.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace luwu::persist {
namespace {

constexpr Milliseconds kBetweenCycles{1000};

}  // namespace

Scrubber::Scrubber(NodeState* state, Jobs jobs, uint64_t bytes_per_s)
    : state_(state),
      jobs_(std::move(jobs)),
      bytes_per_s_(bytes_per_s),
      next_(std::chrono::steady_clock::now()),
      thread_([this] { Run(); }) {}

Scrubber::~Scrubber() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

bool Scrubber::WaitUntil(TimePoint time) {
  const MutexLock lock(mutex_);
  while (!stopping_ && changed_.WaitUntil(mutex_, time)) {
  }
  return !stopping_;
}

bool Scrubber::Pace(uint64_t bytes) {
  if (!WaitUntil(next_)) return false;
  const auto cost = std::chrono::nanoseconds(
      static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s_)));
  // A pause of the machine is not made up for.
  next_ = std::max(next_, std::chrono::steady_clock::now()) + cost;
  state_->scrubbed_bytes += bytes;
  return true;
}

void Scrubber::Run() {
  ::pthread_setname_np(::pthread_self(), "luwu-scrub");
  while (WaitUntil(std::chrono::steady_clock::now() + kBetweenCycles)) {
    bool any = false;
    for (const std::shared_ptr<JobStore>& job : jobs_()) {
      for (const StoredGeneration& stored : job->Committed()) {
        any = true;
        if (!job->Scrub(stored, [this](uint64_t bytes) { return Pace(bytes); })) return;
      }
    }
    if (any) ++state_->scrub_cycles;
  }
}

}  // namespace luwu::persist
