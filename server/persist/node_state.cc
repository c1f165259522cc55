#include "server/persist/node_state.h"

#include <pthread.h>

#include <utility>

#include "common/base/bytes.h"
#include "common/base/log.h"

namespace luwu::persist {
namespace {

constexpr uint64_t kRetryMs = 500;
constexpr size_t kDamagedMax = 64;

}  // namespace

NodeState::NodeState() : thread_([this] { Run(); }) {}

NodeState::~NodeState() {
  Stop();
  End();
}

void NodeState::End() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

Status NodeState::Usable() const {
  const MutexLock lock(mutex_);
  if (stopped_) return Error(ErrorCode::kCancelled, "the storage shuts down");
  if (!failed_.empty()) {
    return Error(ErrorCode::kCorrupt,
                 "the storage takes no writes since it failed ({}): check the device, then restart "
                 "the daemon",
                 failed_);
  }
  return OkStatus();
}

void NodeState::Fail(const std::string& why) {
  {
    const MutexLock lock(mutex_);
    if (!failed_.empty()) return;
    failed_ = why;
  }
  changed_.NotifyAll();
  LogError("storage_failed", "error={}", why);
}

std::string NodeState::failed() const {
  const MutexLock lock(mutex_);
  return failed_;
}

void NodeState::ReportDamage(const std::string& what) {
  LogError("storage_damage", "what={}", what);
  const MutexLock lock(mutex_);
  for (const std::string& known : damaged_) {
    if (known == what) return;
  }
  if (damaged_.size() == kDamagedMax) damaged_.pop_front();
  damaged_.push_back(what);
}

std::vector<std::string> NodeState::damaged() const {
  const MutexLock lock(mutex_);
  return {damaged_.begin(), damaged_.end()};
}

void NodeState::Stop() {
  {
    const MutexLock lock(mutex_);
    stopped_full_ = stopped_full_ || (!stopped_ && waiting_ > 0);
    stopped_ = true;
  }
  changed_.NotifyAll();
}

bool NodeState::stopped_full() const {
  const MutexLock lock(mutex_);
  return stopped_full_;
}

void NodeState::Waits(const std::string& what, bool is_new) {
  if (is_new && waiting_++ == 0) LogWarning("storage_full", "waits_for={}", what);
  full_ = what;  // the reason may be another one than at first
}

void NodeState::WaitsNoMore() {
  if (--waiting_ > 0) return;
  full_.clear();
  LogInfo("storage_has_space", "retry=succeeded");
}

Status NodeState::RetryWhileFull(const Attempt& attempt) {
  bool counted = false;
  while (true) {
    Status status = Usable();
    if (status.ok()) status = attempt();
    const bool again = CodeOf(status) == ErrorCode::kResourceExhausted;
    const MutexLock lock(mutex_);
    if (!again) {
      if (counted) WaitsNoMore();
      return status;
    }
    Waits(MessageOf(status), !counted);
    counted = true;
    const TimePoint deadline = DeadlineAfter(kRetryMs);
    while (!stopped_ && failed_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
  }
}

void NodeState::RetryLater(Attempt attempt) {
  {
    const MutexLock lock(mutex_);
    arrived_.push_back({std::move(attempt)});
  }
  changed_.NotifyAll();
}

void NodeState::Run() {
  ::pthread_setname_np(::pthread_self(), "luwu-space");
  std::vector<Waiter> waiters;
  std::vector<Waiter> still;
  std::function<void()> before;
  while (true) {
    {
      const MutexLock lock(mutex_);
      const TimePoint deadline = DeadlineAfter(kRetryMs);
      while (arrived_.empty() && !ending_ && (waiters.empty() || !(stopped_ || !failed_.empty()))) {
        if (waiters.empty()) {
          changed_.Wait(mutex_);
        } else if (!changed_.WaitUntil(mutex_, deadline)) {
          break;
        }
      }
      if (ending_ && arrived_.empty() && waiters.empty()) return;
      for (Waiter& waiter : arrived_) waiters.push_back(std::move(waiter));
      arrived_.clear();
      before = before_retries_;
    }
    if (before) before();
    still.clear();
    for (Waiter& waiter : waiters) {
      const Status status = waiter.attempt();
      const bool again = CodeOf(status) == ErrorCode::kResourceExhausted;
      {
        const MutexLock lock(mutex_);
        if (again) Waits(MessageOf(status), !waiter.counted);
        if (!again && waiter.counted) WaitsNoMore();
      }
      waiter.counted = true;
      if (again) still.push_back(std::move(waiter));
    }
    waiters.swap(still);
  }
}

void NodeState::set_before_retries(std::function<void()> call) {
  const MutexLock lock(mutex_);
  before_retries_ = std::move(call);
}

void NodeState::set_reserve(std::unique_ptr<Reserve> reserve) {
  reserve_ = std::move(reserve);
  if (!reserve_->whole()) RestoreReserve();
}

bool NodeState::ReleaseReserve(uint64_t bytes) {
  if (reserve_ == nullptr || !reserve_->Release(bytes)) return false;
  LogWarning("storage_reserve_used", "bytes={} left={}", bytes, reserve_->bytes());
  RestoreReserve();
  return true;
}

bool NodeState::ReleaseReserveForFile(uint64_t bytes) {
  return reserve_ != nullptr && reserve_->files_left() && ReleaseReserve(bytes);
}

void NodeState::RestoreReserve() {
  if (restoring_.exchange(true)) return;
  auto first = std::make_shared<bool>(true);
  RetryLater([this, first] {
    Status status = Usable();
    // Not at once: somebody is about to use what has just been released.
    if (status.ok()) status = std::exchange(*first, false) ? PayloadRoom() : reserve_->Restore();
    if (CodeOf(status) != ErrorCode::kResourceExhausted) restoring_ = false;
    return status;
  });
}

Status NodeState::PayloadRoom() const {
  if (reserve_ == nullptr || reserve_->whole()) return OkStatus();
  return Error(ErrorCode::kResourceExhausted,
               "what is kept back for a full disk has been used: {} are left of it",
               HumanBytes(reserve_->bytes()));
}

std::optional<std::string> NodeState::full() const {
  const MutexLock lock(mutex_);
  if (waiting_ == 0) return std::nullopt;
  return full_;
}

uint64_t NodeState::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_;
}

Status NodeState::TakeBudget(uint64_t bytes) {
  const uint64_t limit = stop_bytes_;
  const uint64_t used = used_bytes_.fetch_add(bytes) + bytes;
  if (limit == 0 || used <= limit) return OkStatus();
  used_bytes_ -= bytes;
  return Error(ErrorCode::kResourceExhausted,
               "{} more would bring the payload above {}, where writes stop: delete checkpoints or "
               "raise the budget of the storage",
               HumanBytes(bytes), HumanBytes(limit));
}

}  // namespace luwu::persist
