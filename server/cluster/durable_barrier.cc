#include "server/cluster/durable_barrier.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace luwu {
namespace {

// A node has two unconfirmed points at most, and a checkpoint adds one or two.
constexpr size_t kOpenPointsMax = 16;
constexpr size_t kWaitersMax = 4096;

}  // namespace

DurableBarrier::DurableBarrier(std::string job, uint64_t epoch, std::vector<Node> nodes,
                               std::optional<uint64_t> confirmed)
    : job_(std::move(job)), epoch_(epoch), nodes_(std::move(nodes)), confirmed_(confirmed) {}

Status DurableBarrier::Check(const DurableReport& report) const {
  if (report.epoch != epoch_) {
    return Error(ErrorCode::kStaleEpoch,
                 "a point of epoch {:#x} of job '{}', which has epoch {:#x}", report.epoch, job_,
                 epoch_);
  }
  if (report.node >= nodes_.size()) {
    return Error(ErrorCode::kInvalidArgument, "a point of node {}; the node list has {} nodes",
                 report.node, nodes_.size());
  }
  const bool is_new = !IsConfirmed(report.step) && !stored_.contains(report.step);
  if (is_new && stored_.size() >= kOpenPointsMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "job '{}' has {} points that some nodes have stored and others have not", job_,
                 stored_.size());
  }
  return OkStatus();
}

bool DurableBarrier::IsConfirmed(uint64_t step) const { return confirmed_ && step <= *confirmed_; }

bool DurableBarrier::Note(const DurableReport& report) {
  if (IsConfirmed(report.step)) return false;
  std::vector<bool>& stored = stored_[report.step];
  stored.resize(nodes_.size());
  stored[report.node] = true;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].weight > 0 && !stored[i]) return false;
  }
  confirmed_ = report.step;
  stored_.erase(stored_.begin(), stored_.upper_bound(report.step));
  return true;
}

std::vector<DurableCallback> DurableBarrier::TakeConfirmed() {
  if (!confirmed_) return {};
  const auto first_done = std::stable_partition(
      waiters_.begin(), waiters_.end(),
      [confirmed = *confirmed_](const Waiter& waiter) { return waiter.step > confirmed; });
  std::vector<DurableCallback> told;
  for (auto waiter = first_done; waiter != waiters_.end(); ++waiter) {
    told.push_back(std::move(waiter->done));
  }
  waiters_.erase(first_done, waiters_.end());
  return told;
}

void DurableBarrier::Report(const DurableReport& report, TimePoint deadline, DurableCallback done) {
  Status status;
  std::vector<DurableCallback> told;
  {
    MutexLock lock(mutex_);
    status = shutdown_.ok() ? Check(report) : shutdown_;
    if (status.ok()) {
      if (Note(report)) told = TakeConfirmed();
    }
  }
  for (const DurableCallback& tell : told) tell(OkStatus());
  if (!status.ok()) {
    done(status);
    return;
  }
  Await(report.step, deadline, std::move(done));
}

void DurableBarrier::Await(uint64_t step, TimePoint deadline, DurableCallback done) {
  Status status;
  {
    MutexLock lock(mutex_);
    status = shutdown_;
    if (status.ok() && !IsConfirmed(step)) {
      if (waiters_.size() < kWaitersMax) {
        waiters_.push_back({step, deadline, std::move(done)});
        return;
      }
      status = Error(ErrorCode::kResourceExhausted, "{} callers wait for points of job '{}'",
                     waiters_.size(), job_);
    }
  }
  done(status);
}

std::string DurableBarrier::MissingNodes(uint64_t step) const {
  const auto found = stored_.find(step);
  std::string text;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].weight == 0 || (found != stored_.end() && found->second[i])) continue;
    text += fmt::format("{}'{}'", text.empty() ? "node " : ", ", nodes_[i].name);
  }
  return text;
}

void DurableBarrier::Tick(TimePoint now) {
  std::vector<std::pair<DurableCallback, Status>> told;
  {
    MutexLock lock(mutex_);
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      if (waiter->deadline > now) {
        ++waiter;
        continue;
      }
      told.emplace_back(
          std::move(waiter->done),
          Error(ErrorCode::kDeadline,
                "the point of step {} of job '{}' is not complete: not stored by {}; see "
                "luwuctl status, a disk may be full",
                waiter->step, job_, MissingNodes(waiter->step)));
      waiter = waiters_.erase(waiter);
    }
  }
  for (const auto& [tell, status] : told) tell(status);
}

void DurableBarrier::Shutdown(const Status& why) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    if (shutdown_.ok()) shutdown_ = why;
    waiters.swap(waiters_);
  }
  for (const Waiter& waiter : waiters) waiter.done(why);
}

std::optional<uint64_t> DurableBarrier::confirmed() const {
  MutexLock lock(mutex_);
  return confirmed_;
}

}  // namespace luwu
