#include "server/service/recovery_driver.h"

#include <pthread.h>

#include <algorithm>
#include <set>
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
      const std::string job = active->first;
      while (Advance(job, active->second)) {
      }
      const Phase phase = active->second.round.phase();
      const bool ended = phase == Phase::kDone || phase == Phase::kImpossible;
      if (ended) Conclude(job, active->second);
      active = ended ? active_.erase(active) : std::next(active);
    }
  } while (Pause(kPauseMs));
}

Status RecoveryDriver::Begin(const std::string& job, uint64_t epoch) {
  RETURN_IF_ERROR(registry_->CheckRecoverable(job, epoch));
  {
    MutexLock lock(mutex_);
    begun_[job] = epoch;
    wanted_ = true;
  }
  changed_.NotifyAll();
  return OkStatus();
}

// Looks before anything is stopped.
Status RecoveryDriver::CheckCheckpoint(const std::string& job, const std::string& checkpoint) {
  const std::vector<Node>& nodes = registry_->nodes();
  RecoveryRound look(
      {.job = job, .nodes = nodes, .lead = registry_->lead(), .checkpoint = checkpoint});
  const std::vector<uint32_t> asked = look.Pending();
  const auto answers =
      AskAll<StatusOr<StoredPoints>>(asked.size(), [&](size_t i, PeerClient::PointsDone done) {
        if (asked[i] == registry_->self()) {
          done(registry_->ListStored(job));
        } else {
          peers_->ListStored(asked[i], job, std::move(done));
        }
      });
  for (size_t i = 0; i < asked.size(); ++i) {
    RETURN_IF_ERROR(answers[i].status());
    look.OnPrepared(asked[i], answers[i]);
  }
  if (look.phase() != Phase::kImpossible) return OkStatus();
  return Error(ErrorCode::kNotFound, "job {}: {}", job, look.reason());
}

StatusOr<persist::Point> RecoveryDriver::Restore(const std::string& job,
                                                 const std::string& checkpoint,
                                                 TimePoint deadline) {
  RETURN_IF_ERROR(CheckCheckpoint(job, checkpoint));
  MutexLock lock(mutex_);
  if (stopping_) return Error(ErrorCode::kUnavailable, "this node is shutting down");
  if (wishes_.contains(job)) {
    return Error(ErrorCode::kState, "another checkpoint of job {} is being restored", job);
  }
  wishes_[job] = {.checkpoint = checkpoint, .result = std::nullopt};
  wanted_ = true;
  changed_.NotifyAll();
  while (!wishes_[job].result && !stopping_ && MillisecondsUntil(deadline) > 0) {
    changed_.WaitUntil(mutex_, deadline);
  }
  const Wish wish = std::move(wishes_[job]);
  wishes_.erase(job);
  if (wish.result) return *wish.result;
  if (stopping_) return Error(ErrorCode::kUnavailable, "this node is shutting down");
  return Error(ErrorCode::kDeadline,
               "job {} has not gone back to checkpoint '{}' in time; look at its status", job,
               checkpoint);
}

void RecoveryDriver::BeginRounds() {
  std::set<std::string> jobs;
  std::map<std::string, uint64_t> begun;
  std::map<std::string, std::string> checkpoints;
  {
    MutexLock lock(mutex_);
    begun.swap(begun_);
    for (const auto& [job, wish] : wishes_) {
      if (!wish.result) checkpoints[job] = wish.checkpoint;
    }
  }
  for (const auto& [job, epoch] : begun) {
    // Once more: a round may have done what was asked for meanwhile.
    if (registry_->CheckRecoverable(job, epoch).ok()) jobs.insert(job);
  }
  for (const AbsentJob& job : registry_->AbsentJobs()) {
    if (job.phase == JobPhase::kRecovering) jobs.insert(job.name);
  }
  for (const auto& [job, checkpoint] : checkpoints) {
    const auto found = active_.find(job);
    if (found != active_.end() && found->second.round.checkpoint() == checkpoint) continue;
    active_.erase(job);
    StartRound(job, checkpoint, {});
  }
  for (const std::string& job : jobs) {
    if (!active_.contains(job)) StartRound(job, "", {});
  }
}

void RecoveryDriver::StartRound(const std::string& job, std::string checkpoint,
                                std::vector<persist::Point> excluded) {
  RecoveryRound round({.job = job,
                       .nodes = registry_->nodes(),
                       .lead = registry_->lead(),
                       .checkpoint = std::move(checkpoint),
                       .excluded = std::move(excluded)});
  const uint64_t epoch = RandomEpoch();
  LogInfo("recovery_begins", "job={} epoch={:016x} checkpoint=\"{}\"", job, epoch,
          round.checkpoint());
  active_.insert_or_assign(job, Active{.epoch = epoch, .round = std::move(round), .told = ""});
}

bool RecoveryDriver::Advance(const std::string& job, Active& active) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
  }
  const Phase before = active.round.phase();
  const size_t pending_before = active.round.Pending().size();
  if (pending_before == 0) return false;
  Ask(job, active);
  if (active.round.phase() == Phase::kAgain) {
    LogWarning("recovery_again", "job={} why=\"{}\"", job, active.round.reason());
    StartRound(job, active.round.checkpoint(), active.round.excluded());
    return false;  // after a pause
  }
  registry_->NoteProgress(job, active.round.reason());
  if (active.told != active.round.reason()) {
    active.told = active.round.reason();
    LogInfo("recovery", "job={} state=\"{}\"", job, active.told);
  }
  return active.round.phase() != before;
}

// The others at the same time, then this node: the lead.
void RecoveryDriver::Ask(const std::string& job, Active& active) {
  RecoveryRound& round = active.round;
  const bool preparing = round.phase() == Phase::kPreparing;
  std::vector<uint32_t> others = round.Pending();
  const bool self = std::erase(others, registry_->self()) > 0;
  if (preparing) {
    const auto answers =
        AskAll<StatusOr<StoredPoints>>(others.size(), [&](size_t i, PeerClient::PointsDone done) {
          peers_->PrepareRollback(others[i], job, active.epoch, std::move(done));
        });
    for (size_t i = 0; i < others.size(); ++i) round.OnPrepared(others[i], answers[i]);
    if (self) {
      round.OnPrepared(registry_->self(), registry_->PrepareRollback(job, active.epoch));
    }
    return;
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

void RecoveryDriver::Conclude(const std::string& job, const Active& active) {
  const RecoveryRound& round = active.round;
  const bool done = round.phase() == Phase::kDone;
  LogInfo(done ? "recovery_done" : "recovery_impossible", "job={} epoch={:016x} state=\"{}\"", job,
          active.epoch, round.reason());
  // Without its checkpoint the job goes back to its newest point, in a round of its own.
  if (!done && round.checkpoint().empty()) registry_->Condemn(job, round.reason());
  MutexLock lock(mutex_);
  const auto wish = wishes_.find(job);
  if (wish == wishes_.end() || wish->second.checkpoint != round.checkpoint()) return;
  if (done) {
    wish->second.result = round.target();
  } else {
    wish->second.result = Error(ErrorCode::kNotFound, "job {}: {}", job, round.reason());
  }
  changed_.NotifyAll();
}

void RecoveryDriver::AskLead() {
  const TimePoint now = std::chrono::steady_clock::now();
  for (const AbsentJob& job : registry_->AbsentJobs()) {
    if (job.phase != JobPhase::kRecovering) continue;
    TimePoint& asked_at = asked_at_[job.name];
    if (asked_at != TimePoint() && now - asked_at < Milliseconds(kAskPauseMs)) continue;
    asked_at = now;
    const std::vector<Status> answer = AskAll<Status>(1, [&](size_t, PeerClient::Done done) {
      peers_->AskRecovery(registry_->lead(), job.name, job.epoch, std::move(done));
    });
    if (answer[0].ok()) continue;
    if (EndsAsking(CodeOf(answer[0]))) {
      registry_->Condemn(job.name, MessageOf(answer[0]));
    } else {
      registry_->NoteProgress(job.name, "waiting for the lead: " + MessageOf(answer[0]));
    }
  }
}

}  // namespace luwu
