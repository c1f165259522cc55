// The decision about a step, what it leaves to be done for each shard, and publication. The
// decision itself opens the next step and answers the commits; a shard that is not settled at once
// takes part in the next step's sums when it is (Advance).
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr uint64_t kReportPauseMaxMs = 2000;

Status CheckDecision(const JobSpec& spec, const StepDecision& decision) {
  if (decision.factors.empty() || decision.factors.size() == ClipUnits(spec)) return OkStatus();
  return Error(ErrorCode::kInternal,
               "the lead answered with {} clip factors, job '{}' has {} units",
               decision.factors.size(), spec.name, ClipUnits(spec));
}

}  // namespace

void JobImpl::OnDecision(uint64_t step, const StatusOr<StepDecision>& decision) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    if (!shutdown_.ok() || gate_.step() != step) return;
    if (gate_.phase() != StepGate::Phase::kReporting) return;
    const Status status = decision.ok() ? CheckDecision(spec(), *decision) : decision.status();
    if (status.ok()) {
      CarryOut(*decision, &effects);
    } else {
      LogWarning("report_failed", "job={} step={} again_in_ms={} why=\"{}\"", spec().name, step,
                 report_pause_ms_, ToString(status));
      gate_.set_phase(StepGate::Phase::kReportFailed);
      report_failure_ = status;
      report_again_at_ = env_.clock->Now() + Milliseconds(report_pause_ms_);
      report_pause_ms_ = std::min(2 * report_pause_ms_, kReportPauseMaxMs);
      SettleWaiters(&effects);
    }
  }
  effects.Run();
}

void JobImpl::CarryOut(const StepDecision& decision, JobEffects* effects) {
  const bool can_skip = KeepsUndoState(spec()) || spec().update_mode == UpdateMode::kDeferred;
  const bool applied = decision.outcome == Outcome::kApplied && gate_.non_finite().empty();
  if (applied || (decision.outcome == Outcome::kSkipped && can_skip)) {
    SettleAll(decision, effects);
    return;
  }
  Fail(decision.outcome == Outcome::kFailed
           ? decision.culprit
           : fmt::format("the lead decided '{}', which node '{}' cannot carry out ({})",
                         OutcomeName(decision.outcome), self().name, gate_.non_finite()),
       effects);
}

void JobImpl::Fail(const std::string& culprit, JobEffects* effects) {
  gate_.set_phase(StepGate::Phase::kFailed);
  state_ = JobState::kFailed;
  failure_ = culprit;
  LogError("job_failed", "job={} step={} culprit=\"{}\"", spec().name, gate_.step(), culprit);
  changed_.NotifyAll();
  SettleWaiters(effects);
}

void JobImpl::SettleAll(const StepDecision& decision, JobEffects* effects) {
  // Every shard is ready, so nothing of the step before is left to do with these.
  settling_ = {gate_.step(), gate_.loss_scale(), gate_.groups(), decision};
  gate_.Finish(decision);
  made_.finite_steps = decision.finite_steps;
  const TimePoint now = env_.clock->Now();
  counters_.pace.Note(now);
  if (counters_.step_begun_at) {
    const std::chrono::duration<double> took = now - *counters_.step_begun_at;
    counters_.last_step_seconds = took.count();
    counters_.times.Note(took.count());
    counters_.step_begun_at.reset();
  }
  if (decision.outcome == Outcome::kApplied) ++counters_.applied_steps;
  if (decision.outcome == Outcome::kSkipped) {
    ++counters_.skipped_steps;
    LogWarning("step_skipped", "job={} step={} culprit=\"{}\"", spec().name, settling_.step,
               decision.culprit);
  }
  if (!decision.factors.empty()) ++counters_.clipped_steps;
  if (points_ != nullptr && (IsBoundary(gate_.step()) || made_.requested_step == gate_.step())) {
    BeginPoint();
  }
  for (JobShard& shard : shards_) {
    if (!shard.trainable) {
      if (made_.begun_step == gate_.step()) CapturePoint(shard);
      continue;
    }
    shard.settle = SettleOf(shard);
    if (shard.settle == JobShard::Settle::kNone) {
      shard.absent ? store_->Pass(shard.index) : TakeOver(shard);
      PublishShard(shard);
    } else {
      store_->Drop(shard.index);  // what was computed ahead
    }
    shard.progress.Reset();
    shard.ready = shard.absent = shard.ahead = false;
  }
  // First layer first: the next forward pass wants them in this order.
  for (JobShard& shard : shards_) {
    if (shard.settle != JobShard::Settle::kNone) Advance(shard, effects);
  }
  changed_.NotifyAll();
  PublishBoards(effects);
  SettleWaiters(effects);
}

JobShard::Settle JobImpl::SettleOf(const JobShard& shard) const {
  if (shard.absent) return JobShard::Settle::kNone;  // has been carried over
  if (settling_.decision.outcome == Outcome::kSkipped) return JobShard::Settle::kCarry;
  if (spec().update_mode == UpdateMode::kDeferred) return JobShard::Settle::kUpdate;
  // What was computed ahead assumed that nothing is clipped.
  for (const UnitSum& squares : shard.squares) {
    if (settling_.decision.factor(squares.unit) != 1.0) return JobShard::Settle::kUpdate;
  }
  return JobShard::Settle::kNone;
}

void JobImpl::EndSettle(JobShard& shard, const UpdateResult& result, JobEffects* effects) {
  LUWU_CHECK(result.non_finite.empty(), "a step that was applied is finite");
  shard.next_crc32c = result.served_crc32c;
  if (shard.settle == JobShard::Settle::kUpdate) TakeOver(shard);
  shard.settle = JobShard::Settle::kNone;
  PublishShard(shard);
  for (const Rank& rank : ranks_) {
    if (rank.session == nullptr || !rank.session->Check().ok()) continue;
    rank.session->board().SetPublished(shard.index, published_[shard.index]);
    effects->FlushBoard(rank.session);
  }
  NoteMoved(effects);
  Advance(shard, effects);
}

// The new generation becomes the current one.
void JobImpl::TakeOver(JobShard& shard) {
  store_->Flip(shard.index);
  if (KeepsUndoState(spec())) ++shard.flips;
  ++shard.applied;
}

void JobImpl::PublishShard(JobShard& shard) {
  const uint64_t version = settling_.step + 1;
  weights_->Publish(shard.index, version, shard.next_crc32c);
  published_[shard.index] = version + 1;
  if (made_.begun_step == version) CapturePoint(shard);
}

void JobImpl::PublishBoards(JobEffects* effects) {
  for (const Rank& rank : ranks_) {
    if (rank.session == nullptr || !rank.session->Check().ok()) continue;
    rank.session->board().SetCurrentStep(gate_.step());
    rank.session->board().SetPublished(published_);
    effects->FlushBoard(rank.session);
  }
  NoteMoved(effects);
}

}  // namespace luwu
