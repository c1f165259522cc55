// The step as a whole on this node: beginning it, reporting its end, carrying the decision out, and
// publishing the new versions.
#include <algorithm>

#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr uint64_t kReportPauseMinMs = 100;
constexpr uint64_t kReportPauseMaxMs = 2000;

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

Status JobImpl::BeginStep(Session& session, uint64_t step,
                          const std::vector<HyperParameters>& groups) {
  if (groups.size() != spec().groups) {
    return Error(ErrorCode::kInvalidArgument, "{} sets of hyper-parameters for {} groups",
                 groups.size(), spec().groups);
  }
  for (uint32_t i = 0; i < groups.size(); ++i) {
    RETURN_IF_ERROR(ValidateHyperParameters(spec().optimizer, i, groups[i]));
  }
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckBegin(session, step));
    const uint32_t rank = session.identity().rank;
    // A worker that comes back may find this node one step ahead of others: it repeats the step
    // that has been decided here, and everything it pushes for it is a duplicate.
    if (step == gate_.step()) RETURN_IF_ERROR(gate_.Begin(rank, groups));
    ranks_[rank].begun_step = step;
    ReportIfDone(&effects);
  }
  effects.Run();
  return OkStatus();
}

void JobImpl::ReportIfDone(JobEffects* effects) {
  if (!gate_.ReadyToReport() || !shutdown_.ok() || state_ != JobState::kTraining) return;
  report_pause_ms_ = kReportPauseMinMs;
  SendReport(effects);
}

void JobImpl::SendReport(JobEffects* effects) {
  gate_.set_phase(StepGate::Phase::kReporting);
  effects->Report(reporter_, gate_.step(), gate_.non_finite(),
                  [weak = weak_from_this(), step = gate_.step()](StatusOr<StepDecision> decision) {
                    if (const auto job = weak.lock()) job->OnDecision(step, decision);
                  });
}

void JobImpl::OnDecision(uint64_t step, const StatusOr<StepDecision>& decision) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    if (!shutdown_.ok() || gate_.step() != step) return;
    if (gate_.phase() != StepGate::Phase::kReporting) return;
    if (decision.ok()) {
      CarryOut(*decision, &effects);
    } else {
      LogWarning("report_failed", "job={} step={} again_in_ms={} why=\"{}\"", spec().name, step,
                 report_pause_ms_, ToString(decision.status()));
      gate_.set_phase(StepGate::Phase::kReportFailed);
      report_failure_ = decision.status();
      report_again_at_ = env_.clock->Now() + Milliseconds(report_pause_ms_);
      report_pause_ms_ = std::min(2 * report_pause_ms_, kReportPauseMaxMs);
      SettleWaiters(&effects);
    }
  }
  effects.Run();
}

void JobImpl::CarryOut(const StepDecision& decision, JobEffects* effects) {
  gate_.set_phase(StepGate::Phase::kFinishing);
  decision_ = decision;
  const bool can_skip = spec().keep_undo_state;
  if (decision.outcome == Outcome::kApplied && gate_.non_finite().empty()) {
    PublishStep(effects);
    return;
  }
  if (decision.outcome != Outcome::kSkipped || !can_skip) {
    Fail(decision.outcome == Outcome::kFailed
             ? decision.culprit
             : fmt::format("the lead decided '{}', which node '{}' cannot carry out ({})",
                           OutcomeName(decision.outcome), self().name, gate_.non_finite()),
         effects);
    return;
  }
  carries_left_ = 0;
  for (JobShard& shard : shards_) {
    if (!shard.trainable || shard.absent) continue;  // an absent shard has been carried over
    ++carries_left_;
    StartCarry(shard);
  }
  if (carries_left_ == 0) PublishStep(effects);
}

void JobImpl::Fail(const std::string& culprit, JobEffects* effects) {
  state_ = JobState::kFailed;
  failure_ = culprit;
  decision_ = {Outcome::kFailed, culprit};
  LogError("job_failed", "job={} step={} culprit=\"{}\"", spec().name, gate_.step(), culprit);
  changed_.NotifyAll();
  SettleWaiters(effects);
}

void JobImpl::PublishStep(JobEffects* effects) {
  const uint64_t version = gate_.step() + 1;
  const bool applied = decision_.outcome == Outcome::kApplied;
  for (JobShard& shard : shards_) {
    if (!shard.trainable) continue;
    if (applied && !shard.absent) {
      store_->Flip(shard.index);
      if (spec().keep_undo_state) ++shard.flips;
      ++shard.applied;
    }
    weights_->Publish(shard.index, version, shard.next_crc32c);
    published_[shard.index] = version + 1;
    shard.progress.Reset();
    shard.updated = shard.absent = false;
  }
  if (!applied) {
    ++counters_.skipped_steps;
    LogWarning("step_skipped", "job={} step={} culprit=\"{}\"", spec().name, gate_.step(),
               decision_.culprit);
  }
  gate_.Finish(decision_);
  changed_.NotifyAll();
  PublishBoards(effects);
  SettleWaiters(effects);
}

void JobImpl::PublishBoards(JobEffects* effects) {
  for (const Rank& rank : ranks_) {
    if (rank.session == nullptr || !rank.session->Check().ok()) continue;
    rank.session->board().SetCurrentStep(gate_.step());
    rank.session->board().SetPublished(published_);
    effects->FlushBoard(rank.session);
  }
}

}  // namespace luwu
