#include "server/cluster/commit_coordinator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace luwu {
namespace {

constexpr size_t kDecisionsKept = 4;
constexpr uint32_t kNamedMax = 5;
constexpr double kNormEpsilon = 1e-6;  // as in torch.nn.utils.clip_grad_norm_

}  // namespace

CoordinatorOptions CoordinatorOptionsFor(const JobSpec& spec, uint64_t epoch,
                                         std::vector<Node> nodes) {
  return {.job = spec.name,
          .epoch = epoch,
          .nodes = std::move(nodes),
          .on_non_finite = spec.on_non_finite,
          .clip_scope = spec.clip_scope,
          .clip_units = ClipUnits(spec),
          .loss_scaling = spec.loss_scaling};
}

CommitCoordinator::CommitCoordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      loss_scale_(options_.restored
                      ? LossScale(options_.loss_scaling, options_.restored->loss_scale,
                                  options_.restored->finite_steps)
                      : LossScale(options_.loss_scaling)),
      durable_(options_.job, options_.epoch, options_.nodes,
               options_.restored ? std::optional(options_.restored->step) : std::nullopt) {
  MutexLock lock(mutex_);
  if (options_.restored) next_step_ = options_.restored->step;
  reported_.resize(options_.nodes.size());
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
  if (FindDecided(report.step) != nullptr) return OkStatus();
  if (report.step == next_step_) return CheckFindings(report);
  return Error(ErrorCode::kStepMismatch,
               "node '{}' reports step {} of job '{}'; the next to be decided is step {}",
               options_.nodes[report.node].name, report.step, options_.job, next_step_);
}

// Workers pass the same limits to all nodes; one that does not must not pass for clipped.
Status CommitCoordinator::CheckFindings(const StepReport& report) const {
  const StepFindings& findings = report.findings;
  if (findings.non_finite.empty() && findings.squares.size() != options_.clip_units) {
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}' reports {} sums of squares for step {} of job '{}', which has {} clip "
                 "units; use daemons of one version",
                 options_.nodes[report.node].name, findings.squares.size(), report.step,
                 options_.job, options_.clip_units);
  }
  const size_t limits = options_.clip_scope == ClipScope::kNone    ? 0
                        : options_.clip_scope == ClipScope::kGroup ? options_.clip_units
                                                                   : 1;
  if (findings.norm_limits.size() != limits) {
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}' reports {} norm limits for step {} of job '{}', which has {}; use "
                 "daemons of one version",
                 options_.nodes[report.node].name, findings.norm_limits.size(), report.step,
                 options_.job, limits);
  }
  for (size_t i = 0; i < reported_.size(); ++i) {
    if (!reported_[i] || reported_[i]->norm_limits == findings.norm_limits) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}' reports max_norm [{}] for step {} of job '{}', node '{}' [{}]; pass "
                 "equal hyper-parameters to all nodes",
                 options_.nodes[report.node].name, fmt::join(findings.norm_limits, ", "),
                 report.step, options_.job, options_.nodes[i].name,
                 fmt::join(reported_[i]->norm_limits, ", "));
  }
  return OkStatus();
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

StepDecision CommitCoordinator::Decide() {
  StepDecision decision;
  // The first in node order, so that the same reports give the same words in any order of arrival.
  for (const std::optional<StepFindings>& findings : reported_) {
    if (!findings || findings->non_finite.empty()) continue;
    decision.outcome =
        options_.on_non_finite == NonFinitePolicy::kFail ? Outcome::kFailed : Outcome::kSkipped;
    decision.culprit = findings->non_finite;
    decision.grad_norm = std::numeric_limits<double>::quiet_NaN();
    break;
  }
  const bool finite = decision.outcome == Outcome::kUnspecified;
  if (finite) {
    decision.outcome = Outcome::kApplied;
    DecideNorms(&decision);
  }
  loss_scale_.Update(finite);
  decision.next_loss_scale = loss_scale_.value();
  decision.finite_steps = loss_scale_.finite_steps();
  return decision;
}

void CommitCoordinator::DecideNorms(StepDecision* decision) const {
  std::vector<ExactSum> squares(options_.clip_units);
  ExactSum total;
  std::vector<double> limits;
  for (const std::optional<StepFindings>& findings : reported_) {
    if (!findings) continue;
    limits = findings->norm_limits;
    for (uint32_t unit = 0; unit < options_.clip_units; ++unit) {
      squares[unit].Merge(findings->squares[unit]);
    }
  }
  for (const ExactSum& sum : squares) total.Merge(sum);
  decision->grad_norm = std::sqrt(total.ToDouble());
  bool clips = false;
  std::vector<double> factors(options_.clip_units, 1.0);
  for (uint32_t unit = 0; unit < options_.clip_units && !limits.empty(); ++unit) {
    const double limit = limits.size() == 1 ? limits[0] : limits[unit];
    if (limit == 0) continue;
    factors[unit] = std::min(1.0, limit / (std::sqrt(squares[unit].ToDouble()) + kNormEpsilon));
    clips = clips || factors[unit] != 1.0;
  }
  if (clips) decision->factors = std::move(factors);
}

std::vector<DecisionCallback> CommitCoordinator::TryDecide(StatusOr<StepDecision>* answer) {
  std::vector<DecisionCallback> told;
  if (held_until_ || !AllReported()) return told;
  *answer = Decide();
  decided_.push_back({next_step_, **answer});
  if (decided_.size() > kDecisionsKept) decided_.pop_front();
  ++next_step_;
  std::fill(reported_.begin(), reported_.end(), std::nullopt);
  for (Waiter& waiter : waiters_) told.push_back(std::move(waiter.done));
  waiters_.clear();
  return told;
}

void CommitCoordinator::Report(const StepReport& report, TimePoint deadline,
                               DecisionCallback done) {
  StatusOr<StepDecision> answer = StepDecision();
  std::vector<DecisionCallback> told;
  {
    MutexLock lock(mutex_);
    if (const Status status = CheckReport(report); !status.ok()) {
      answer = status;
      told.push_back(std::move(done));
    } else if (const StepDecision* decided = FindDecided(report.step)) {
      answer = *decided;
      told.push_back(std::move(done));
    } else {
      if (!reported_[report.node]) reported_[report.node] = report.findings;
      waiters_.push_back({deadline, std::move(done)});
      told = TryDecide(&answer);
    }
  }
  for (const DecisionCallback& tell : told) tell(answer);
}

void CommitCoordinator::ReportDurable(const DurableReport& report, TimePoint deadline,
                                      DurableCallback done) {
  durable_.Report(report, deadline, std::move(done));
}

void CommitCoordinator::AwaitDurable(uint64_t step, TimePoint deadline, DurableCallback done) {
  durable_.Await(step, deadline, std::move(done));
}

Status CommitCoordinator::StartAt(uint64_t step, float loss_scale, uint32_t finite_steps) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  const bool reported = std::any_of(reported_.begin(), reported_.end(),
                                    [](const auto& report) { return report.has_value(); });
  if (reported || !decided_.empty() || (next_step_ != 0 && next_step_ != step)) {
    return Error(ErrorCode::kState, "job '{}' is training at step {}: it cannot go on at step {}",
                 options_.job, next_step_, step);
  }
  next_step_ = step;
  if (options_.loss_scaling.initial_scale != 0) {
    loss_scale_ = LossScale(options_.loss_scaling, loss_scale, finite_steps);
  }
  return OkStatus();
}

StatusOr<uint64_t> CommitCoordinator::Hold(TimePoint until) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  if (held_until_) {
    return Error(ErrorCode::kState, "step {} of job '{}' is held for another checkpoint; try again",
                 next_step_, options_.job);
  }
  held_until_ = until;
  return next_step_;
}

void CommitCoordinator::Release() {
  StatusOr<StepDecision> answer = StepDecision();
  std::vector<DecisionCallback> told;
  {
    MutexLock lock(mutex_);
    if (!held_until_ || !shutdown_.ok()) return;
    held_until_.reset();
    told = TryDecide(&answer);
  }
  for (const DecisionCallback& tell : told) tell(answer);
}

void CommitCoordinator::Tick(TimePoint now) {
  std::vector<Waiter> late;
  Status status;
  durable_.Tick(now);
  bool held_too_long = false;
  {
    MutexLock lock(mutex_);
    held_too_long = held_until_ && *held_until_ <= now;
  }
  if (held_too_long) Release();
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
  durable_.Shutdown(why);
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
