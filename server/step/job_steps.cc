// Beginning a step and reporting its end.
#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr uint64_t kReportPauseMinMs = 100;

}  // namespace

Status JobImpl::CheckBegin(const Session& session, uint64_t step) const {
  RETURN_IF_ERROR(session.Check());
  RETURN_IF_ERROR(shutdown_);
  if (!IsCurrent(session)) {
    return Error(ErrorCode::kFenced, "{} no longer holds its rank",
                 DescribeWorker(session.identity()));
  }
  if (state_ == JobState::kFailed) {
    return Error(ErrorCode::kJobFailed,
                 "job '{}' failed in step {} and accepts no further step: {}", spec().name,
                 gate_.step(), failure_);
  }
  if (state_ == JobState::kLoading || loads_in_progress_ > 0) {
    return Error(ErrorCode::kState,
                 "the weights of job '{}' are not loaded on node '{}' yet; wait until version 0 is "
                 "published",
                 spec().name, self().name);
  }
  const bool just_decided = gate_.last() && gate_.last()->step == step;
  if (step == gate_.step() || just_decided) return OkStatus();
  return Error(ErrorCode::kStepMismatch,
               "step {} cannot begin: job '{}' is at step {} on node '{}'", step, spec().name,
               gate_.step(), self().name);
}

StatusOr<BegunStep> JobImpl::BeginStep(Session& session, uint64_t step,
                                       const std::vector<HyperParameters>& groups) {
  RETURN_IF_ERROR(ValidateStep(spec(), groups));
  BegunStep begun;
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckBegin(session, step));
    const uint32_t rank = session.identity().rank;
    begun.loss_scale = gate_.loss_scale();
    if (step == gate_.step()) {
      // Nothing can be loaded any more, so the first point is as it will be.
      const bool is_first = !gate_.begun_by_anyone() && !made_.begun_step;
      RETURN_IF_ERROR(gate_.Begin(rank, groups));
      if (!counters_.step_begun_at) counters_.step_begun_at = env_.clock->Now();
      if (is_first && points_ != nullptr && spec().durable_every > 0) {
        BeginPoint();
        for (JobShard& shard : shards_) CapturePoint(shard);
      }
    } else {
      // A worker that comes back may find this node one step ahead of others: it repeats the step
      // that has been decided here, and everything it pushes for it is a duplicate.
      begun.loss_scale = gate_.last()->loss_scale;
    }
    ranks_[rank].begun_step = step;
    ReportIfDone(&effects);
  }
  effects.Run();
  return begun;
}

void JobImpl::ReportIfDone(JobEffects* effects) {
  if (!gate_.ReadyToReport() || !shutdown_.ok() || state_ != JobState::kTraining) return;
  report_pause_ms_ = kReportPauseMinMs;
  SendReport(effects);
}

void JobImpl::SendReport(JobEffects* effects) {
  gate_.set_phase(StepGate::Phase::kReporting);
  StepFindings findings;
  findings.non_finite = gate_.non_finite();
  findings.norm_limits = NormLimits(spec(), gate_.groups());
  findings.squares = gate_.squares();
  effects->Report(reporter_, gate_.step(), std::move(findings),
                  [weak = weak_from_this(), step = gate_.step()](StatusOr<StepDecision> decision) {
                    if (const auto job = weak.lock()) job->OnDecision(step, decision);
                  });
}

}  // namespace luwu
