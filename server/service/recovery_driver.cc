#include "server/service/recovery_driver.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/base/hmac.h"
#include "common/base/log.h"

namespace luwu {
namespace {

constexpr uint64_t kPauseMs = 200;
constexpr uint64_t kAskPauseMs = 1000;

using Phase = RecoveryRound::Phase;

uint64_t RandomEpoch() {
  while (true) {
    if (const uint64_t epoch = RandomU64(); epoch != 0) return epoch;
  }
}

// Of a job whose checkpoint is not restored.
const char* DescribeUntouched(JobPhase phase) {
  switch (phase) {
    case JobPhase::kRecovering:
      return "the job is being brought back as before";
    case JobPhase::kLost:
      return "the job is lost as before";
    case JobPhase::kCreating:
    case JobPhase::kLive:
      break;
  }
  return "the job goes on as it was";
}

bool EndsAsking(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kStaleEpoch ||
         code == ErrorCode::kUnsupported || code == ErrorCode::kJobFailed;
}

}  // namespace

RecoveryDriver::RecoveryDriver(JobRegistry* registry, PeerClient* peers)
    : registry_(registry), peers_(peers) {}

RecoveryDriver::~RecoveryDriver() { Stop(); }

void RecoveryDriver::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "luwu-recover");
}

void RecoveryDriver::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

bool RecoveryDriver::Pause(uint64_t ms) {
  MutexLock lock(mutex_);
  if (!stopping_ && !wanted_) changed_.WaitUntil(mutex_, DeadlineAfter(ms));
  wanted_ = false;
  return !stopping_;
}

void RecoveryDriver::Run() {
  do {
    if (!registry_->is_lead()) {
      AskLead();
      continue;
    }
    BeginRounds();
    for (auto active = active_.begin(); active != active_.end();) {
      const bool due = std::chrono::steady_clock::now() >= active->second.not_before;
      while (due && Advance(active->second)) {
      }
      const Phase phase = active->second.round.phase();
      const bool ended = phase == Phase::kDone || phase == Phase::kImpossible;
      if (ended) Conclude(active->second);
      active = ended ? active_.erase(active) : std::next(active);
    }
  } while (Pause(kPauseMs));
}

Status RecoveryDriver::Begin(const Request& request) {
  if (request.just_started) {
    registry_->Reconsider(request.job, fmt::format("{} has just started", request.node));
  }
  RETURN_IF_ERROR(registry_->CheckRecoverable(request.job, request.epoch));
  {
    MutexLock lock(mutex_);
    begun_[request.job] = request.epoch;
    wanted_ = true;
  }
  changed_.NotifyAll();
  return OkStatus();
}

// Looks, and reads all of it, before anything is stopped: going back drops the newer points.
Status RecoveryDriver::CheckCheckpoint(const DescribedJob& job, const std::string& checkpoint,
                                       const Caller& caller) {
  const std::string& name = job.spec.name;
  const std::vector<Node>& nodes = registry_->nodes();
  RecoveryRound look(
      {.job = name, .nodes = nodes, .lead = registry_->lead(), .checkpoint = checkpoint});
  const std::vector<uint32_t> asked = look.Pending();
  const auto answers = AskAll<StatusOr<StoredPoints>>(
      asked.size(),
      [&](size_t i, PeerClient::PointsDone done) {
        if (asked[i] != registry_->self()) {
          peers_->VerifyStored(asked[i], {name, checkpoint}, caller.deadline(), std::move(done));
          return;
        }
        const Status sound = registry_->VerifyCheckpoint(name, checkpoint);
        done(sound.ok() ? registry_->ListStored(name) : StatusOr<StoredPoints>(sound));
      },
      &caller);
  if (const Status sound = AllErrors(answers); !sound.ok()) {
    return Annotate(sound, fmt::format("checkpoint '{}' of job {} cannot be restored, and {}",
                                       checkpoint, name, DescribeUntouched(job.phase)));
  }
  for (size_t i = 0; i < asked.size(); ++i) look.OnPrepared(asked[i], answers[i]);
  if (look.phase() != Phase::kImpossible) return OkStatus();
  return Error(ErrorCode::kNotFound, "job {}: {}", name, look.reason());
}

StatusOr<persist::Point> RecoveryDriver::Restore(const std::string& job,
                                                 const std::string& checkpoint,
                                                 const Caller& caller) {
  ASSIGN_OR_RETURN(DescribedJob described, registry_->Describe(job));
  described.spec.name = job;  // that of a job whose record cannot be read is empty
  const JobKey key{job, described.lineage};
  RETURN_IF_ERROR(CheckCheckpoint(described, checkpoint, caller));
  if (caller.gone()) return Error(ErrorCode::kCancelled, "the caller gave up");
  MutexLock lock(mutex_);
  if (stopping_) return Error(ErrorCode::kUnavailable, "this node is shutting down");
  if (wishes_.contains(job)) {
    return Error(ErrorCode::kState, "another checkpoint of job {} is being restored", job);
  }
  wishes_[job] = {.lineage = key.lineage,
                  .checkpoint = checkpoint,
                  .waits_for = "its turn",
                  .result = std::nullopt};
  wanted_ = true;
  changed_.NotifyAll();
  Status exists;
  while (!wishes_[job].result && !stopping_ && exists.ok() && caller.waits()) {
    changed_.WaitUntil(mutex_, caller.next_look());
    exists = registry_->CheckExists(key);
  }
  const Wish wish = std::move(wishes_[job]);
  wishes_.erase(job);
  if (wish.result) return *wish.result;
  if (stopping_) return Error(ErrorCode::kUnavailable, "this node is shutting down");
  RETURN_IF_ERROR(exists);
  return Error(ErrorCode::kDeadline,
               "job {} has not gone back to checkpoint '{}' in time: it waits for {}; it goes on "
               "by itself, and luwuctl status shows how far it is",
               job, checkpoint, wish.waits_for);
}

std::map<std::string, JobKey> RecoveryDriver::TakeBegun() {
  std::map<std::string, uint64_t> begun;
  {
    MutexLock lock(mutex_);
    begun.swap(begun_);
  }
  std::map<std::string, JobKey> jobs;
  for (const auto& [job, epoch] : begun) {
    const StatusOr<DescribedJob> described = registry_->Describe(job);
    // Once more: a round may have done what was asked for meanwhile.
    if (described.ok() && registry_->CheckRecoverable(job, epoch).ok()) {
      jobs[job] = {job, described->lineage};
    }
  }
  return jobs;
}

void RecoveryDriver::BeginRounds() {
  for (auto& [name, active] : active_) {
    const Status exists = registry_->CheckExists(active.job);
    if (!exists.ok()) active.round.GiveUp(MessageOf(exists));
  }
  std::map<std::string, Wish> wishes;
  {
    MutexLock lock(mutex_);
    for (const auto& [job, wish] : wishes_) {
      if (!wish.result) wishes[job] = wish;
    }
  }
  for (const auto& [job, wish] : wishes) {
    const auto found = active_.find(job);
    if (found != active_.end() && found->second.job.lineage == wish.lineage &&
        found->second.round.checkpoint() == wish.checkpoint) {
      continue;
    }
    const JobKey key{job, wish.lineage};
    if (!registry_->CheckExists(key).ok()) continue;  // who waits for it looks, too
    impossible_.erase({wish.lineage, wish.checkpoint});
    StartRound(key, wish.checkpoint, {}, 0);
  }
  for (const AbsentJob& job : registry_->AbsentJobs()) {
    if (job.phase != JobPhase::kRecovering || active_.contains(job.name)) continue;
    // A restore that was cut goes on.
    const bool goes_on = !impossible_.contains({job.lineage, job.restoring});
    StartRound({job.name, job.lineage}, goes_on ? job.restoring : "", {}, 0);
  }
  for (const auto& [name, job] : TakeBegun()) {
    if (!active_.contains(name)) StartRound(job, "", {}, 0);
  }
}

void RecoveryDriver::StartRound(const JobKey& job, std::string checkpoint,
                                std::vector<DoubtfulPoint> doubtful, uint64_t pause_ms) {
  RecoveryRound round({.job = job.name,
                       .nodes = registry_->nodes(),
                       .lead = registry_->lead(),
                       .checkpoint = std::move(checkpoint),
                       .doubtful = std::move(doubtful)});
  const uint64_t epoch = RandomEpoch();
  LogInfo("recovery_begins", "job={} epoch={:016x} checkpoint=\"{}\"", job.name, epoch,
          round.checkpoint());
  Active active{.job = job,
                .epoch = epoch,
                .round = std::move(round),
                .told = "",
                .not_before = DeadlineAfter(pause_ms)};
  active_.insert_or_assign(active.job.name, active);
}

void RecoveryDriver::NoteWait(const Active& active, const std::string& what) {
  const RecoveryRound& round = active.round;
  const Phase phase = round.phase();
  registry_->NoteProgress(
      active.job, {.what = what,
                   .moving = phase == Phase::kRollingBack || phase == Phase::kRollingBackLead,
                   .lacks_memory = round.waits_code() == ErrorCode::kResourceExhausted});
  MutexLock lock(mutex_);
  const auto wish = wishes_.find(active.job.name);
  if (wish == wishes_.end() || wish->second.lineage != active.job.lineage) return;
  wish->second.waits_for = what;
}

std::string RecoveryDriver::DescribeAsked(const RecoveryRound& round) const {
  std::string names;
  for (const uint32_t node : round.Pending()) {
    if (node == registry_->self()) continue;
    names += (names.empty() ? "node " : ", ") + registry_->nodes()[node].name;
  }
  if (names.empty()) names = "node " + registry_->node_name();
  return fmt::format("{} to {}", names, round.phase() == Phase::kPreparing ? "stop" : "go back");
}

bool RecoveryDriver::Advance(Active& active) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
  }
  const Phase before = active.round.phase();
  if (active.round.Pending().empty()) return false;
  NoteWait(active, DescribeAsked(active.round));
  Ask(active);
  NoteWait(active, active.round.reason());
  if (active.round.phase() == Phase::kAgain) {
    LogWarning("recovery_again", "job={} why=\"{}\"", active.job.name, active.round.reason());
    const Active former = active;  // which the next one replaces
    StartRound(former.job, former.round.checkpoint(), former.round.doubtful(),
               former.round.pause_ms());
    return false;  // after a pause
  }
  if (active.told != active.round.reason()) {
    active.told = active.round.reason();
    LogInfo("recovery", "job={} state=\"{}\"", active.job.name, active.told);
  }
  return active.round.phase() != before;
}

// The others at the same time, then this node: the lead.
void RecoveryDriver::Ask(Active& active) {
  RecoveryRound& round = active.round;
  const std::string& job = active.job.name;
  std::vector<uint32_t> others = round.Pending();
  const bool self = std::erase(others, registry_->self()) > 0;
  if (round.phase() == Phase::kPreparing) {
    Prepare(active, others, self);
    return;
  }
  // Before the first node goes back: the others then have nothing in common with this one but the
  // checkpoint, so a lead that starts again has to go on with it.
  if (!round.checkpoint().empty()) {
    const Status noted = registry_->NoteRestore(active.job, round.checkpoint());
    round.OnNoted(noted);
    if (!noted.ok()) return;
  }
  const persist::Point target = round.target();
  const auto answers = AskAll<Status>(others.size(), [&](size_t i, PeerClient::Done done) {
    peers_->RollBack(others[i], job, active.epoch, target, std::move(done));
  });
  for (size_t i = 0; i < others.size(); ++i) round.OnRolledBack(others[i], answers[i]);
  if (self && round.phase() == Phase::kRollingBackLead) {
    round.OnRolledBack(registry_->self(), registry_->RollBack(job, active.epoch, target));
  }
}

void RecoveryDriver::Prepare(Active& active, const std::vector<uint32_t>& others, bool self) {
  const auto answers =
      AskAll<StatusOr<StoredPoints>>(others.size(), [&](size_t i, PeerClient::PointsDone done) {
        peers_->PrepareRollback(others[i], active.job, active.epoch, std::move(done));
      });
  RecoveryRound& round = active.round;
  for (size_t i = 0; i < others.size(); ++i) round.OnPrepared(others[i], answers[i]);
  if (self) {
    round.OnPrepared(registry_->self(), registry_->PrepareRollback(active.job, active.epoch));
  }
}

void RecoveryDriver::Conclude(const Active& active) {
  const RecoveryRound& round = active.round;
  const std::string& job = active.job.name;
  const bool done = round.phase() == Phase::kDone;
  LogInfo(done ? "recovery_done" : "recovery_impossible", "job={} epoch={:016x} state=\"{}\"", job,
          active.epoch, round.reason());
  // Without its checkpoint the job goes back to its newest point, in a round of its own.
  if (!done && round.checkpoint().empty()) registry_->Condemn(active.job, round.reason());
  if (!done && !round.checkpoint().empty() && registry_->CheckExists(active.job).ok()) {
    const Status cleared = registry_->NoteRestore(active.job, "");
    if (!cleared.ok()) {
      impossible_.insert({active.job.lineage, round.checkpoint()});
      LogWarning("restore_not_cleared", "job={} why=\"{}\"", job, ToString(cleared));
    }
  }
  MutexLock lock(mutex_);
  const auto wish = wishes_.find(job);
  if (wish == wishes_.end() || wish->second.lineage != active.job.lineage ||
      wish->second.checkpoint != round.checkpoint()) {
    return;
  }
  if (done) {
    wish->second.result = round.target();
  } else {
    wish->second.result = Error(ErrorCode::kNotFound, "job {}: {}", job, round.reason());
  }
  changed_.NotifyAll();
}

// Also about jobs that were given up on the lead's word: what it says now counts.
void RecoveryDriver::AskLead() {
  const TimePoint now = std::chrono::steady_clock::now();
  for (const AbsentJob& job : registry_->AbsentJobs()) {
    if (job.unusable) continue;
    Asked& asked = asked_[job.name];
    if (asked.at != TimePoint() && now - asked.at < Milliseconds(kAskPauseMs)) continue;
    asked.at = now;
    AskLeadAbout(job, &asked);
  }
}

void RecoveryDriver::AskLeadAbout(const AbsentJob& job, Asked* asked) {
  const std::vector<Status> answers = AskAll<Status>(1, [&](size_t, PeerClient::Done done) {
    peers_->AskRecovery(registry_->lead(),
                        {.job = job.name, .epoch = job.epoch, .just_started = !asked->heard},
                        std::move(done));
  });
  const Status& answer = answers[0];
  asked->heard = asked->heard || answer.ok() || EndsAsking(CodeOf(answer));
  if (EndsAsking(CodeOf(answer))) {
    registry_->Condemn({job.name, job.lineage}, MessageOf(answer));
    return;
  }
  registry_->Reconsider(job.name, "the lead brings it back");
  if (!answer.ok()) {
    registry_->NoteProgress({job.name, job.lineage},
                            {.what = "waiting for the lead: " + MessageOf(answer)});
  }
}

}  // namespace luwu
