#include "server/cluster/commit_coordinator.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace luwu {
namespace {

constexpr size_t kDecisionsKept = 4;
constexpr uint32_t kNamedMax = 5;

}  // namespace

CommitCoordinator::CommitCoordinator(CoordinatorOptions options) : options_(std::move(options)) {
  MutexLock lock(mutex_);
  reported_.resize(options_.nodes.size());
  non_finite_.resize(options_.nodes.size());
}

CommitCoordinator::~CommitCoordinator() {
  Shutdown(Error(ErrorCode::kCancelled, "job '{}' has ended on its lead node", options_.job));
}

Status CommitCoordinator::CheckReport(const StepReport& report) const {
  RETURN_IF_ERROR(shutdown_);
  if (report.epoch != options_.epoch) {
    return Error(ErrorCode::kStaleEpoch,
                 "a report for epoch {:#x} of job '{}', which has epoch {:#x}", report.epoch,
                 options_.job, options_.epoch);
  }
  if (report.node >= options_.nodes.size()) {
    return Error(ErrorCode::kInvalidArgument, "a report of node {}; the node list has {} nodes",
                 report.node, options_.nodes.size());
  }
  if (report.step == next_step_ || FindDecided(report.step) != nullptr) return OkStatus();
  return Error(ErrorCode::kStepMismatch,
               "node '{}' reports step {} of job '{}'; the next to be decided is step {}",
               options_.nodes[report.node].name, report.step, options_.job, next_step_);
}

const StepDecision* CommitCoordinator::FindDecided(uint64_t step) const {
  for (const Decided& decided : decided_) {
    if (decided.step == step) return &decided.decision;
  }
  return nullptr;
}

bool CommitCoordinator::AllReported() const {
  for (size_t i = 0; i < options_.nodes.size(); ++i) {
    if (options_.nodes[i].weight > 0 && !reported_[i]) return false;
  }
  return true;
}

StepDecision CommitCoordinator::Decide() const {
  // The first in node order, so that the same reports give the same words in any order of arrival.
  for (const std::string& culprit : non_finite_) {
    if (culprit.empty()) continue;
    return {options_.on_non_finite == NonFinitePolicy::kFail ? Outcome::kFailed : Outcome::kSkipped,
            culprit};
  }
  return {Outcome::kApplied, ""};
}

void CommitCoordinator::Report(const StepReport& report, TimePoint deadline,
                               DecisionCallback done) {
  StatusOr<StepDecision> answer = StepDecision();
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    if (const Status status = CheckReport(report); !status.ok()) {
      answer = status;
    } else if (const StepDecision* decided = FindDecided(report.step)) {
      answer = *decided;
    } else {
      if (!reported_[report.node]) {
        reported_[report.node] = true;
        non_finite_[report.node] = report.non_finite;
      }
      if (!AllReported()) {
        waiters_.push_back({deadline, std::move(done)});
        return;
      }
      answer = Decide();
      decided_.push_back({next_step_, *answer});
      if (decided_.size() > kDecisionsKept) decided_.pop_front();
      ++next_step_;
      std::fill(reported_.begin(), reported_.end(), false);
      std::fill(non_finite_.begin(), non_finite_.end(), std::string());
      waiters.swap(waiters_);
    }
  }
  for (const Waiter& waiter : waiters) waiter.done(answer);
  done(std::move(answer));
}

void CommitCoordinator::Tick(TimePoint now) {
  std::vector<Waiter> late;
  Status status;
  {
    MutexLock lock(mutex_);
    const auto first_late =
        std::stable_partition(waiters_.begin(), waiters_.end(),
                              [now](const Waiter& waiter) { return waiter.deadline > now; });
    late.assign(std::make_move_iterator(first_late), std::make_move_iterator(waiters_.end()));
    waiters_.erase(first_late, waiters_.end());
    if (late.empty()) return;
    status = Error(ErrorCode::kDeadline, "step {} of job '{}' is not decided: no report from {}",
                   next_step_, options_.job, MissingNodes());
  }
  for (const Waiter& waiter : late) waiter.done(status);
}

std::string CommitCoordinator::MissingNodes() const {
  std::string text;
  uint32_t count = 0;
  for (size_t i = 0; i < options_.nodes.size(); ++i) {
    if (options_.nodes[i].weight == 0 || reported_[i] || ++count > kNamedMax) continue;
    text += fmt::format("{}'{}'", text.empty() ? "node " : ", ", options_.nodes[i].name);
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  return text;
}

void CommitCoordinator::Shutdown(const Status& why) {
  LUWU_CHECK(!why.ok(), "a shutdown has a reason");
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    if (shutdown_.ok()) shutdown_ = why;
    waiters.swap(waiters_);
  }
  for (const Waiter& waiter : waiters) waiter.done(why);
}

uint64_t CommitCoordinator::next_step() const {
  MutexLock lock(mutex_);
  return next_step_;
}

}  // namespace luwu
