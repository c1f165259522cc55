// Waiting for commits, and the housekeeping that ends waits: leases, deadlines, repeated reports.
#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

constexpr size_t kWaitersPerSessionMax = 16;
constexpr uint32_t kPauseMs = 500;  // between two ticks, which come every 50 ms
constexpr uint32_t kNamedMax = 3;   // ranks or layers named in a message

CommitResult ResultOf(const StepDecision& decision, ClipScope scope) {
  return {.outcome = decision.outcome,
          .culprit = decision.culprit,
          .grad_norm = decision.grad_norm,
          .clip_factor = scope == ClipScope::kGlobal ? decision.factor(0) : 1.0,
          .next_loss_scale = decision.next_loss_scale};
}

}  // namespace

void JobImpl::AwaitCommit(const std::shared_ptr<Session>& session, uint64_t step,
                          TimePoint deadline, CommitCallback done) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    const auto waiting = std::count_if(waiters_.begin(), waiters_.end(), [&](const auto& waiter) {
      return waiter.session == session;
    });
    if (static_cast<size_t>(waiting) >= kWaitersPerSessionMax) {
      effects.Answer(std::move(done),
                     Error(ErrorCode::kResourceExhausted,
                           "{} already waits {} times for a commit; wait for an answer first",
                           DescribeWorker(session->identity()), waiting));
    } else {
      waiters_.push_back({session, step, deadline, std::move(done)});
      SettleWaiters(&effects);
    }
  }
  effects.Run();
}

std::optional<StatusOr<CommitResult>> JobImpl::TryAnswer(const Session& session,
                                                         uint64_t step) const {
  if (const Status live = session.Check(); !live.ok()) return live;
  if (!shutdown_.ok()) return shutdown_;
  if (gate_.last() && gate_.last()->step == step) {
    if (!IsDurableEnough(step + 1)) {
      if (state_ != JobState::kFailed) return std::nullopt;
      return Error(ErrorCode::kJobFailed, "step {} of job '{}' was applied but not stored: {}",
                   step, spec().name, failure_);
    }
    CommitResult result = ResultOf(gate_.last()->decision, spec().clip_scope);
    result.durability = DurabilityOf(step + 1);
    return result;
  }
  if (step != gate_.step()) {
    return Error(ErrorCode::kStepMismatch,
                 "step {} cannot be committed: job '{}' is at step {} on node '{}'", step,
                 spec().name, gate_.step(), self().name);
  }
  if (state_ == JobState::kFailed) {
    return CommitResult{.outcome = Outcome::kFailed,
                        .culprit = failure_,
                        .grad_norm = std::numeric_limits<double>::quiet_NaN(),
                        .next_loss_scale = gate_.loss_scale()};
  }
  return std::nullopt;
}

void JobImpl::SettleWaiters(JobEffects* effects) {
  if (waiters_.empty()) return;
  const TimePoint now = env_.clock->Now();
  const std::string lost = DescribeLost();
  for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
    std::optional<StatusOr<CommitResult>> answer = TryAnswer(*waiter->session, waiter->step);
    const bool open = waiter->step == gate_.step();  // else it is decided and being stored
    if (!answer && open && !lost.empty()) {
      answer =
          Error(ErrorCode::kWorkerLost, "step {} of job '{}': {}", waiter->step, spec().name, lost);
    }
    if (!answer && open && gate_.phase() == StepGate::Phase::kReportFailed &&
        CodeOf(report_failure_) == ErrorCode::kNodeLost) {
      answer = report_failure_;  // the report is repeated all the same
    }
    if (!answer && now >= waiter->deadline) {
      answer = Error(
          ErrorCode::kDeadline, "step {} of job '{}' has not ended on node '{}': {}", waiter->step,
          spec().name, self().name,
          open ? DescribeOpen()
               : "it is decided, and being stored on all nodes; is a disk full? (luwuctl status)");
    }
    if (!answer) {
      ++waiter;
      continue;
    }
    effects->Answer(std::move(waiter->done), *std::move(answer));
    waiter = waiters_.erase(waiter);
  }
}

// Ranks that still owe gradients and have no live session; empty when there are none.
std::string JobImpl::DescribeLost() const {
  if (gate_.phase() != StepGate::Phase::kOpen) return "";
  const TimePoint now = env_.clock->Now();
  std::string text;
  uint32_t count = 0;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (rank.session == nullptr || rank.opening || gate_.RankFinished(i)) continue;
    const Status end = rank.session->Check();
    if (end.ok() || ++count > kNamedMax) continue;
    const auto ago_ms = std::chrono::duration_cast<Milliseconds>(now - rank.session->ended_at(now));
    text += fmt::format("{}{} was lost {:.1f} s ago ({}), with {} of its shards open",
                        text.empty() ? "" : "; ", DescribeWorker(rank.session->identity()),
                        double(ago_ms.count()) / 1000, MessageOf(end), gate_.open_shards(i));
  }
  if (count > kNamedMax) text += fmt::format("; and {} more", count - kNamedMax);
  return count == 0 ? "" : text + "; restart it and commit again";
}

std::string JobImpl::DescribeOpen() const {
  if (gate_.phase() == StepGate::Phase::kReportFailed) {
    return fmt::format("all ranks have closed it, but the lead node cannot be asked: {}",
                       ToString(report_failure_));
  }
  if (gate_.phase() != StepGate::Phase::kOpen) {
    return "all ranks have closed it here; it waits for the other nodes";
  }
  std::string text;
  uint32_t count = 0;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    if (gate_.RankFinished(i) || ++count > kNamedMax) continue;
    text += (text.empty() ? "" : "; ") + DescribeRankOpen(i);
  }
  if (count > kNamedMax) text += fmt::format("; and {} more ranks", count - kNamedMax);
  if (count > 0) return text;
  const auto on_disk = std::count_if(shards_.begin(), shards_.end(),
                                     [](const JobShard& shard) { return shard.awaits_state; });
  if (on_disk == 0) return "all ranks have closed it; the last shards are being updated";
  return fmt::format(
      "all ranks have closed it; {} shards wait for the disk: is it full? "
      "(luwuctl status)",
      on_disk);
}

std::string JobImpl::DescribeRankOpen(uint32_t rank_number) const {
  const Rank& rank = ranks_[rank_number];
  if (rank.session == nullptr) return fmt::format("rank {} has never joined", rank_number);
  const std::string who = DescribeWorker(rank.session->identity());
  if (rank.begun_step != gate_.step()) return who + " has not begun it";
  std::string names;
  uint64_t layers = 0;
  for (uint32_t layer = 0; layer < spec().layers.size(); ++layer) {
    const ShardMap::IndexRange range = plan_->map.LayerRange(layer);
    bool open = false;
    for (uint32_t i = range.begin; i < range.end; ++i) {
      open = open || (shards_[i].trainable && !shards_[i].progress.RankDone(rank_number));
    }
    if (!open || ++layers > kNamedMax) continue;
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", spec().layers[layer].name);
  }
  return fmt::format("{} has {} shards of {} layers open ({}{})", who,
                     gate_.open_shards(rank_number), layers, names,
                     layers > kNamedMax ? ", ..." : "");
}

// While this process stood still (stopped, its machine paused) no heartbeat could arrive, so that
// time does not count against the workers.
void JobImpl::ForgivePause() {
  const TimePoint now = env_.clock->Now();
  const auto gap = std::chrono::duration_cast<Milliseconds>(now - last_tick_);
  if (gap < Milliseconds(std::max(kPauseMs, plan_->options.lease_ms / 4))) return;
  last_tick_ = now;
  LogWarning("daemon_paused", "job={} ms={}", spec().name, gap.count());
  for (const Rank& rank : ranks_) {
    if (rank.session != nullptr && rank.session->Check().ok()) rank.session->ExtendLease(gap);
  }
}

void JobImpl::Tick() {
  JobEffects effects;
  std::vector<std::shared_ptr<Session>> to_close;
  std::vector<std::shared_ptr<Session>> to_reap;
  std::optional<uint64_t> durable;
  {
    MutexLock lock(mutex_);
    ForgivePause();
    const TimePoint now = env_.clock->Now();
    last_tick_ = now;
    for (const Rank& rank : ranks_) {
      if (rank.session == nullptr || rank.opening) continue;
      to_reap.push_back(rank.session);
      if (!rank.session->LeaseExpired(now) || rank.session->fenced()) continue;
      // Also one that ended by a fault of its own: it has had the time of its lease to read it.
      EndSession(rank.session,
                 Error(ErrorCode::kFenced, "the lease of {} has expired: no heartbeat for {} ms",
                       DescribeWorker(rank.session->identity()), plan_->options.lease_ms));
    }
    if (gate_.phase() == StepGate::Phase::kReportFailed && now >= report_again_at_ &&
        shutdown_.ok()) {
      SendReport(&effects);
    }
    durable = DurableReportDue(now);
    SettleWaiters(&effects);
    to_close.swap(to_close_);
  }
  effects.Run();
  if (durable) ReportDurable(*durable);
  for (const auto& session : to_close) session->CloseLink();
  for (const auto& session : to_reap) session->ReapLinks();
  env_.sessions->Sweep();
}

void JobImpl::Shutdown(const Status& why) {
  JobEffects effects;
  std::vector<std::shared_ptr<Session>> to_close;
  {
    MutexLock lock(mutex_);
    if (shutdown_.ok()) shutdown_ = why;
    for (const Rank& rank : ranks_) {
      if (rank.session != nullptr) EndSession(rank.session, shutdown_);
    }
    SettleWaiters(&effects);
    changed_.NotifyAll();
    to_close.swap(to_close_);
  }
  effects.Run();
  weights_->Cancel();
  for (const auto& session : to_close) session->CloseLink();
  env_.sessions->Sweep();
}

}  // namespace luwu
