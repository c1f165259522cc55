// How ranks change hands: opening a session, taking a rank over from a former holder, ending one.
#include <utility>

#include "common/base/hmac.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"

namespace luwu {
namespace {

// An update thread reads a former holder's slots for milliseconds; this is a bound, not a pace.
constexpr uint64_t kVacateWaitMs = 30000;

}  // namespace

bool JobImpl::IsCurrent(const Session& session) const {
  const Rank& rank = ranks_[session.identity().rank];
  return rank.session.get() == &session && !rank.opening && session.Check().ok();
}

Status JobImpl::CheckTakeover(const Rank& rank, const WorkerIdentity& identity) const {
  const auto taken = [&](const std::string& why) {
    return Error(ErrorCode::kRankTaken, "rank {} of job '{}' on node '{}' {}", identity.rank,
                 spec().name, self().name, why);
  };
  if (rank.opening) return taken("is being taken over by another process right now");
  if (rank.session == nullptr) return OkStatus();
  const Session& holder = *rank.session;
  const TimePoint now = env_.clock->Now();
  const bool dead = !holder.Check().ok() || holder.LeaseExpired(now) ||
                    holder.link_state() == Session::LinkState::kDown;
  if (dead || holder.identity().restart_count < identity.restart_count) return OkStatus();
  return taken(
      fmt::format("is held by pid {} on host {} (restart count {}, lease {} ms left); close that "
                  "session (optimizer.close() in PyTorch) or end that process, wait for its lease, "
                  "or open with a higher restart count than {}",
                  holder.identity().pid, holder.identity().host, holder.identity().restart_count,
                  holder.LeaseLeftMs(now), holder.identity().restart_count));
}

StatusOr<std::shared_ptr<Session>> JobImpl::OpenSession(const WorkerIdentity& identity) {
  if (identity.rank >= spec().world_size) {
    return Error(ErrorCode::kInvalidArgument, "rank {} of job '{}', which has ranks 0 to {}",
                 identity.rank, spec().name, spec().world_size - 1);
  }
  std::shared_ptr<Session> former;
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(shutdown_);
    ForgivePause();
    Rank& rank = ranks_[identity.rank];
    RETURN_IF_ERROR(CheckTakeover(rank, identity));
    former = rank.session;
    rank.opening = true;
    if (former != nullptr) {
      EndSession(former, Error(ErrorCode::kFenced, "{} was replaced by pid {} on host {}",
                               DescribeWorker(former->identity()), identity.pid, identity.host));
    }
    SettleWaiters(&effects);
  }
  effects.Run();
  if (former != nullptr) former->CloseLink();
  Status status = VacateRank(identity.rank);
  StatusOr<std::shared_ptr<Session>> session =
      status.ok() ? SeatSession(identity) : StatusOr<std::shared_ptr<Session>>(status);
  if (!session.ok()) {
    MutexLock lock(mutex_);
    ranks_[identity.rank].opening = false;
  }
  return session;
}

// Waits until nobody reads the former holder's slots, un-counts what is still parked in them, and
// sees to it that the former process cannot write into the next one's inbox.
Status JobImpl::VacateRank(uint32_t rank_number) {
  std::shared_ptr<transport::LocalRegion> discarded;
  std::shared_ptr<Session> former;
  bool keep_inbox = false;
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    Rank& rank = ranks_[rank_number];
    const TimePoint deadline = DeadlineAfter(kVacateWaitMs);
    while (rank.slots.pinned_count() > 0) {
      if (changed_.WaitUntil(mutex_, deadline) || rank.slots.pinned_count() == 0) continue;
      return Error(ErrorCode::kUnavailable,
                   "gradients of the former holder of rank {} are still being summed; try again",
                   rank_number);
    }
    ResetRank(rank_number, &effects);
    former = rank.session;
    // A session that never learnt of its inbox, and so cannot reach it, leaves it as good as new.
    if (former != nullptr && former->regions_exchanged()) discarded = std::move(rank.inbox);
    keep_inbox = rank.inbox != nullptr;
  }
  effects.Run();
  if (former != nullptr) former->DropInbox();
  if (keep_inbox) return OkStatus();
  discarded.reset();  // before the new one is made: the footprint counts one inbox for each rank
  ASSIGN_OR_RETURN(auto fresh,
                   transport::LocalRegion::Create("luwu-inbox", plan_->map.inbox_bytes(),
                                                  transport::Access::kRemoteWrite));
  MutexLock lock(mutex_);
  ranks_[rank_number].inbox = std::move(fresh);
  return OkStatus();
}

void JobImpl::ResetRank(uint32_t rank_number, JobEffects* effects) {
  Rank& rank = ranks_[rank_number];
  std::vector<Contribution> dropped;
  uint64_t dropped_count = 0;
  for (JobShard& shard : shards_) {
    if (!shard.trainable || shard.ready) continue;
    const bool was_done = shard.progress.RankDone(rank_number);
    dropped.clear();
    shard.progress.DropRank(rank_number, &dropped);
    for (const Contribution& contribution : dropped) {
      if (contribution.block != kNowhere) overflow_.Give(contribution.block);
    }
    dropped_count += dropped.size();
    if (was_done && !shard.progress.RankDone(rank_number)) gate_.RankReopenedShard(rank_number);
    const bool settles = shard.settle != JobShard::Settle::kNone;
    const bool waits = settles || shard.progress.complete();
    shard.awaits_reader = shard.awaits_reader && waits;
    if (shard.awaits_state && !waits) store_->Forgo(shard.index);
    shard.awaits_state = shard.awaits_state && waits;
  }
  rank.slots.Reset();
  rank.begun_step.reset();
  gate_.ForgetRank(rank_number);
  MakeRoomForAll();
  if (dropped_count > 0) {
    LogInfo("rank_reset", "job={} rank={} step={} dropped={}", spec().name, rank_number,
            gate_.step(), dropped_count);
  }
  SettleWaiters(effects);
}

StatusOr<std::shared_ptr<Session>> JobImpl::SeatSession(const WorkerIdentity& identity) {
  SessionOptions options;
  while (options.id == 0) options.id = RandomU64();
  options.identity = identity;
  options.job_name = spec().name;
  options.job = weak_from_this();
  options.sink = this;
  options.clock = env_.clock;
  options.lease_ms = plan_->options.lease_ms;
  options.board = {epoch(), spec().slots_per_worker, plan_->map.shard_count(),
                   plan_->map.has_window()};
  options.weights = weights_->region();
  {
    MutexLock lock(mutex_);
    options.inbox = ranks_[identity.rank].inbox;
  }
  auto session = std::make_shared<Session>(std::move(options));
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(shutdown_);
  session->board().SetCurrentStep(gate_.step());
  session->board().SetPublished(published_);
  session->board().SetPlaces(places_);
  Rank& rank = ranks_[identity.rank];
  rank.session = session;
  rank.opening = false;
  rank.closed = false;
  env_.sessions->Insert(session);
  LogInfo("session_opened", "job={} rank={} host={} pid={} restart={} step={}", spec().name,
          identity.rank, identity.host, identity.pid, identity.restart_count, gate_.step());
  return session;
}

// The link stays open until somebody off the progress thread closes it: the caller, or Tick.
void JobImpl::EndSession(const std::shared_ptr<Session>& session, const Status& why) {
  if (session->EndFenced(why)) {
    LogInfo("session_ended", "job={} rank={} pid={} why=\"{}\"", spec().name,
            session->identity().rank, session->identity().pid, MessageOf(why));
  }
  env_.sessions->Erase(session->id());
  to_close_.push_back(session);
}

void JobImpl::CloseSession(const std::shared_ptr<Session>& session) {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    EndSession(session, Error(ErrorCode::kFenced, "{} has closed its session",
                              DescribeWorker(session->identity())));
    Rank& rank = ranks_[session->identity().rank];
    if (rank.session == session) rank.closed = true;
    SettleWaiters(&effects);
  }
  effects.Run();
  session->CloseLink();
}

uint64_t JobImpl::open_sessions() const {
  MutexLock lock(mutex_);
  uint64_t count = 0;
  for (const Rank& rank : ranks_) count += rank.session != nullptr && rank.session->Check().ok();
  return count;
}

void JobImpl::OnUnlinked(Session& session, const Status& why) {
  LogInfo("session_unlinked", "job={} rank={} pid={} why=\"{}\"", spec().name,
          session.identity().rank, session.identity().pid, ToString(why));
}

}  // namespace luwu
