// Points: when one is made, which state belongs to it, and what a commit that leads to one waits
// for. The storing itself is PointMaker's.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr uint64_t kDurablePauseMs = 500;  // before a report that failed is repeated

// Whether the shard's masters lie in the served copy, in part.
bool KeepsServed(const JobSpec& spec, const JobShard& shard) {
  return shard.trainable && spec.optimizer.master_format == MasterFormat::kSplit;
}

}  // namespace

bool JobImpl::IsBoundary(uint64_t step) const {
  return spec().durable_every > 0 && step % spec().durable_every == 0;
}

// Of the step that is open. Shards that have its version are handed in at once, the others as they
// get it (PublishShard).
void JobImpl::BeginPoint() {
  const persist::Point point = {.step = gate_.step(),
                                .epoch = epoch(),
                                .loss_scale = gate_.loss_scale(),
                                .finite_steps = made_.finite_steps,
                                .skipped_steps = counters_.skipped_steps};
  made_.pending.push_back(point);
  made_.begun_step = point.step;
  made_.requested_step.reset();
  points_->Begin(point);
}

void JobImpl::CapturePoint(JobShard& shard) {
  PointItem item;
  item.index = shard.index;
  item.applied = shard.applied;
  item.pin = store_->Pin(shard.index);
  item.generation = shard.flips % 2;
  item.served_version = shard.trainable ? *made_.begun_step : 0;
  if (store_->resident(shard.index)) {
    ++shard.readers[item.generation];
    if (KeepsServed(spec(), shard)) ++shard.served_readers[item.served_version % 2];
  }
  points_->Add(std::move(item));
}

void JobImpl::UnpinPoint(const PointItem& item) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    JobShard& shard = shards_[item.index];
    --shard.readers[item.generation];
    if (KeepsServed(spec(), shard)) --shard.served_readers[item.served_version % 2];
    if (shard.awaits_reader) Advance(shard, &effects);
  }
  effects.Run();
}

// Whether resident state of the open step is being overwritten in place.
bool JobImpl::IsAhead() const {
  if (KeepsUndoState(spec()) || HoldsSums(spec())) return false;
  return std::any_of(shards_.begin(), shards_.end(), [this](const JobShard& shard) {
    if (!store_->resident(shard.index) || shard.settle != JobShard::Settle::kNone) return false;
    return (shard.ready && !shard.absent) || shard.activity == JobShard::Activity::kUpdate;
  });
}

Status JobImpl::MakePoint(uint64_t step) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  if (points_ == nullptr) {
    return Error(ErrorCode::kState,
                 "node '{}' has no storage, so job '{}' cannot be kept on disk; start luwud with a "
                 "data directory ([storage] path, or --data-dir)",
                 self().name, spec().name);
  }
  if (state_ != JobState::kTraining) {
    return Error(ErrorCode::kState, "job '{}' {}", spec().name,
                 state_ == JobState::kLoading ? "has no weights yet" : "has failed: " + failure_);
  }
  const auto is_step = [step](const persist::Point& point) { return point.step == step; };
  if (made_.durable && is_step(*made_.durable)) return OkStatus();
  if (std::any_of(made_.pending.begin(), made_.pending.end(), is_step)) return OkStatus();
  if (step == gate_.step() + 1) {
    made_.requested_step = step;
    return OkStatus();
  }
  if (step != gate_.step()) {
    return Error(ErrorCode::kStepMismatch, "a point of step {} of job '{}', which is at step {}",
                 step, spec().name, gate_.step());
  }
  if (IsAhead()) {
    return Error(ErrorCode::kState, "step {} of job '{}' is being updated in place", step,
                 spec().name);
  }
  BeginPoint();
  for (JobShard& shard : shards_) {
    if (shard.settle == JobShard::Settle::kNone) CapturePoint(shard);
  }
  return OkStatus();
}

Status JobImpl::StoreOpenStep(TimePoint deadline) {
  if (spec().durable_every == 0 || points_ == nullptr) return OkStatus();
  const uint64_t step = current_step();
  RETURN_IF_ERROR(MakePoint(step));
  MutexLock lock(mutex_);
  const auto is_stored = [this, step]() LUWU_REQUIRES(mutex_) {
    return (made_.stored && made_.stored->step >= step) ||
           (made_.durable && made_.durable->step >= step);
  };
  while (!is_stored()) {
    RETURN_IF_ERROR(shutdown_);
    if (state_ == JobState::kFailed) return MakeError(ErrorCode::kJobFailed, failure_);
    if (!changed_.WaitUntil(mutex_, deadline) && !is_stored()) {
      return Error(ErrorCode::kDeadline, "step {} of job '{}' could not be stored in time", step,
                   spec().name);
    }
  }
  return OkStatus();
}

std::optional<persist::Point> JobImpl::durable_point() const {
  MutexLock lock(mutex_);
  return made_.durable;
}

void JobImpl::OnPointStored(const persist::Point& point) {
  {
    MutexLock lock(mutex_);
    made_.stored = point;
    changed_.NotifyAll();
  }
  ReportDurable(point.step);
}

void JobImpl::ReportDurable(uint64_t step) {
  reporter_->ReportDurable(step, [weak = weak_from_this(), step](const Status& status) {
    if (const auto job = weak.lock()) job->OnDurable(step, status);
  });
}

void JobImpl::OnDurable(uint64_t step, const Status& status) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    if (!shutdown_.ok()) return;
    if (!status.ok()) {
      LogWarning("durable_report_failed", "job={} step={} why=\"{}\"", spec().name, step,
                 ToString(status));
      if (made_.stored && made_.stored->step == step) {
        made_.report_again_at = env_.clock->Now() + Milliseconds(kDurablePauseMs);
      }
      return;
    }
    while (!made_.pending.empty() && made_.pending.front().step <= step) {
      made_.durable = made_.pending.front();
      made_.pending.pop_front();
    }
    points_->Confirm(step);
    SettleWaiters(&effects);
  }
  effects.Run();
}

// A report that could not be delivered is repeated, by Tick.
std::optional<uint64_t> JobImpl::DurableReportDue(TimePoint now) {
  if (!made_.report_again_at || now < *made_.report_again_at || !shutdown_.ok())
    return std::nullopt;
  made_.report_again_at.reset();
  return made_.stored->step;
}

void JobImpl::OnStateLoaded(uint32_t index) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    if (shards_[index].awaits_state) Advance(shards_[index], &effects);
  }
  effects.Run();
}

void JobImpl::OnStateFailed(const Status& why) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    if (state_ != JobState::kFailed) {
      Fail(fmt::format("node '{}': {}", self().name, MessageOf(why)), &effects);
    }
  }
  effects.Run();
}

// Whether a commit that has been decided may be answered. In the background one point is stored
// while training goes on, not two.
bool JobImpl::IsDurableEnough(uint64_t step) const {
  if (!IsBoundary(step) || (made_.durable && made_.durable->step >= step)) return true;
  return spec().durability == Durability::kMemory && made_.pending.size() <= 1;
}

Durability JobImpl::DurabilityOf(uint64_t step) const {
  if (!made_.durable || made_.durable->step < step) return Durability::kMemory;
  return spec().durability == Durability::kLogged ? Durability::kLogged : Durability::kSynced;
}

}  // namespace luwu
