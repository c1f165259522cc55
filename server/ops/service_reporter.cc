#include "server/ops/service_reporter.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/liveness.h"
#include "common/base/log.h"

namespace luwu {
namespace {

constexpr uint64_t kTickMs = 250;
constexpr uint64_t kQuietMs = 2000;  // without work on any job: between its phases are pauses
constexpr uint64_t kExtendEveryMs = 10'000;
constexpr uint64_t kExtendByMs = 60'000;
constexpr uint64_t kExtendUnchangedMaxMs = 3'600'000;

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// "MONOTONIC_USEC" of sd_notify(3).
int64_t MonotonicUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ServiceReporter::ServiceReporter(ServiceManager manager) : manager_(std::move(manager)) {
  if (!manager_.present()) return;
  {
    const MutexLock lock(mutex_);
    text_ = "Starting: the data directory is opened";
    text_since_ = std::chrono::steady_clock::now();
    manager_.Send("STATUS=" + text_);
  }
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "luwu-notify");
}

ServiceReporter::~ServiceReporter() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void ServiceReporter::Serving(std::function<ServiceView()> look) {
  {
    const MutexLock lock(mutex_);
    look_ = std::move(look);
    busy_last_ = std::chrono::steady_clock::now();
  }
  wake_.NotifyAll();
}

void ServiceReporter::Reloading() {
  manager_.Send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", MonotonicUs()));
}

void ServiceReporter::Reloaded() {
  const MutexLock lock(mutex_);
  if (ready_) manager_.Send("READY=1");
}

void ServiceReporter::Stopping(const std::string& why) {
  const MutexLock lock(mutex_);
  look_ = nullptr;
  stopping_ = true;
  text_ = OneLine("Stopping: " + why);
  text_since_ = extended_at_ = std::chrono::steady_clock::now();
  manager_.Send("STOPPING=1\nSTATUS=" + text_);
}

// The lines that have become due.
std::string ServiceReporter::Describe(TimePoint now) {
  std::vector<std::string> lines;
  if (look_ != nullptr) {
    const ServiceView view = look_();
    if (view.working) busy_last_ = now;
    const bool quiet = now - busy_last_ >= Milliseconds(kQuietMs);
    if (!ready_ && (!view.pending || quiet)) {
      ready_ = true;
      lines.push_back("READY=1");
    }
    if (std::string text = OneLine(view.text); text != text_) {
      lines.push_back("STATUS=" + text);
      text_ = std::move(text);
      text_since_ = now;
    }
  }
  const bool extends = (!ready_ || stopping_) &&
                       now - extended_at_ >= Milliseconds(kExtendEveryMs) &&
                       now - text_since_ < Milliseconds(kExtendUnchangedMaxMs);
  if (extends) {
    extended_at_ = now;
    lines.push_back(fmt::format("EXTEND_TIMEOUT_USEC={}", kExtendByMs * 1000));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

bool ServiceReporter::MayFeed(TimePoint now) {
  const std::vector<std::string> stuck = StuckLoops(now, manager_.watchdog_ms() / 2);
  if (!stuck.empty() && !std::exchange(told_stuck_, true)) {
    LogError("LOOP_STUCK", "loops=\"{}\" action=\"the watchdog is not fed\"",
             fmt::join(stuck, ", "));
  }
  if (stuck.empty()) told_stuck_ = false;
  return stuck.empty();
}

void ServiceReporter::Run() {
  const uint64_t feed_ms = manager_.watchdog_ms() / 4;
  const uint64_t tick_ms = feed_ms == 0 ? kTickMs : std::clamp<uint64_t>(feed_ms, 1, kTickMs);
  TimePoint fed;
  while (true) {
    std::string lines;
    const TimePoint now = std::chrono::steady_clock::now();
    {
      const MutexLock lock(mutex_);
      if (ending_) return;
      lines = Describe(now);
    }
    if (!lines.empty()) manager_.Send(lines);
    if (feed_ms > 0 && now - fed >= Milliseconds(feed_ms) && MayFeed(now)) {
      fed = now;
      manager_.Send("WATCHDOG=1");
    }
    const MutexLock lock(mutex_);
    if (!ending_) wake_.WaitUntil(mutex_, DeadlineAfter(tick_ms));
  }
}

}  // namespace luwu
