#include "client/src/step_driver.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "client/src/node_calls.h"

namespace luwu::client {

namespace {

// What one norm is limited to must be one number.
Status CheckNormLimits(const JobSpec& spec, const std::vector<HyperParameters>& groups) {
  for (uint32_t group = 0; group < groups.size(); ++group) {
    const double limit = groups[group].max_norm;
    if (spec.clip_scope == ClipScope::kNone && limit != 0) {
      return Error(ErrorCode::kInvalidArgument,
                   "group {}: max_norm is {}, but job '{}' was created without a clip_scope; pass "
                   "0 or create it with one",
                   group, limit, spec.name);
    }
    if (spec.clip_scope != ClipScope::kGroup && limit != groups[0].max_norm) {
      return Error(ErrorCode::kInvalidArgument,
                   "group {}: max_norm is {}, that of group 0 is {}; with clip_scope {} they must "
                   "be equal",
                   group, limit, groups[0].max_norm, ClipScopeName(spec.clip_scope));
    }
  }
  return OkStatus();
}

}  // namespace

Status StepDriver::CheckBegin(uint64_t step, const std::vector<HyperParameters>& groups) {
  const JobSpec& spec = fabric_->plan().spec();
  if (groups.size() != spec.groups) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} sets of hyper-parameters were given, job '{}' has {} groups", groups.size(),
                 spec.name, spec.groups);
  }
  for (uint32_t group = 0; group < groups.size(); ++group) {
    RETURN_IF_ERROR(ValidateHyperParameters(spec.optimizer, group, groups[group]));
  }
  RETURN_IF_ERROR(CheckNormLimits(spec, groups));
  MonitorLock lock(fabric_->monitor());
  RETURN_IF_ERROR(fabric_->Health(lock));
  const std::optional<uint64_t> open = fabric_->progress(lock).open_step();
  if (open && *open != step) {
    return Error(ErrorCode::kState, "step {} is open: commit it before step {} begins", *open,
                 step);
  }
  return OkStatus();
}

Status StepDriver::Begin(uint64_t step, const std::vector<HyperParameters>& groups,
                         TimePoint deadline) {
  RETURN_IF_ERROR(CheckBegin(step, groups));
  const auto begin = [&](NodeRpc& rpc, NodeRpc::Done<BeginReply> done) {
    rpc.BeginStep(step, groups, deadline, std::move(done));
  };
  ASSIGN_OR_RETURN(const std::vector<BeginReply> answers,
                   CallActiveNodes<BeginReply>(*fabric_, *rpcs_, deadline, begin));
  const double scale = answers.front().loss_scale;
  for (const BeginReply& answer : answers) {
    if (answer.loss_scale == scale) continue;
    return Error(ErrorCode::kInternal, "nodes disagree on the loss scale of step {}: {} and {}",
                 step, scale, answer.loss_scale);
  }
  MonitorLock lock(fabric_->monitor());
  loss_scale_ = scale;
  fabric_->progress(lock).OpenStep(step);
  return OkStatus();
}

StatusOr<std::optional<CommitReply>> StepDriver::PrepareCommit(uint64_t step, TimePoint deadline) {
  Waiter waiter(fabric_->monitor(), Waiter::Interest::kAllButBoards);
  MonitorLock lock(fabric_->monitor());
  if (committed_step_ == step) return std::optional<CommitReply>(committed_);
  StepProgress& progress = fabric_->progress(lock);
  while (true) {
    RETURN_IF_ERROR(fabric_->Health(lock));
    if (progress.open_step() != step) {
      return Error(ErrorCode::kState, "step {} is not open: begin it first (the next step is {})",
                   step, progress.current_step());
    }
    if (!progress.has_pending()) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error(ErrorCode::kDeadline,
                   "commit of step {}: asynchronous pushes are not finished yet; repeat the call",
                   step);
    }
    fabric_->WaitForChange(lock, waiter, deadline);
  }
  if (const std::optional<uint32_t> open = progress.FirstOpenLayer()) {
    return Error(ErrorCode::kState,
                 "commit of step {}: layer '{}' is not closed; push its last gradient with "
                 "LUWU_PUSH_CLOSE, or call luwu_close_layer",
                 step, fabric_->plan().spec().layers[*open].name);
  }
  return std::optional<CommitReply>();
}

StatusOr<CommitReply> StepDriver::Commit(uint64_t step, TimePoint deadline) {
  ASSIGN_OR_RETURN(const std::optional<CommitReply> earlier, PrepareCommit(step, deadline));
  if (earlier) return *earlier;
  // A node on which the job has failed says so while the others still wait for it: that ends the
  // call. Guarded by the monitor.
  const auto failure = std::make_shared<std::optional<CommitReply>>();
  const auto commit = [&](NodeRpc& rpc, NodeRpc::Done<CommitReply> done) {
    rpc.Commit(step, deadline,
               [this, failure, step, done = std::move(done)](StatusOr<CommitReply> reply) {
                 if (!reply.ok() || reply->outcome != StepOutcome::kFailed) {
                   done(std::move(reply));
                   return;
                 }
                 {
                   MonitorLock lock(fabric_->monitor());
                   if (!*failure) *failure = *reply;
                 }
                 done(Error(ErrorCode::kJobFailed, "step {} of job '{}' failed: {}", step,
                            fabric_->plan().spec().name, reply->culprit));
               });
  };
  const StatusOr<std::vector<CommitReply>> replies =
      CallActiveNodes<CommitReply>(*fabric_, *rpcs_, deadline, commit);
  if (!replies.ok()) {
    MonitorLock lock(fabric_->monitor());
    if (!*failure) return replies.status();
    committed_step_ = step;
    committed_ = **failure;
    loss_scale_ = committed_.loss_scale;
    return committed_;  // and the session has ended with the reason
  }
  const std::vector<CommitReply>& answers = *replies;
  for (const CommitReply& answer : answers) {
    if (answer.outcome == answers.front().outcome) continue;
    return Error(ErrorCode::kInternal, "nodes disagree on the outcome of step {}: {} and {}", step,
                 static_cast<int>(answers.front().outcome), static_cast<int>(answer.outcome));
  }
  MonitorLock lock(fabric_->monitor());
  committed_step_ = step;
  committed_ = answers.front();
  for (const CommitReply& answer : answers) {
    committed_.durability = std::min(committed_.durability, answer.durability);
  }
  loss_scale_ = committed_.loss_scale;
  fabric_->progress(lock).EndStep(step);
  return committed_;
}

double StepDriver::loss_scale() {
  MonitorLock lock(fabric_->monitor());
  return loss_scale_;
}

}  // namespace luwu::client
