#include "server/service/checkpoint_claims.h"

#include <algorithm>

namespace luwu {
namespace {

// A command that waits for a full disk may keep its claim for minutes.
constexpr uint64_t kTurnMs = 5'000;

const char* Describe(CheckpointClaims::Work work) {
  switch (work) {
    case CheckpointClaims::Work::kMake:
      return "made";
    case CheckpointClaims::Work::kDrop:
      return "deleted";
    case CheckpointClaims::Work::kRestore:
      return "restored";
  }
  return "used";
}

}  // namespace

Status CheckpointClaims::Check(const std::string& job, const std::string& name, Work work) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return OkStatus();
  if (const auto other = found->second.works.find(name); other != found->second.works.end()) {
    return Error(ErrorCode::kState,
                 "checkpoint '{}' of job {} is being {}; try again when that has ended", name, job,
                 Describe(other->second));
  }
  if (work != Work::kMake || !found->second.making) return OkStatus();
  return Error(ErrorCode::kState,
               "another checkpoint of job {} is being made; try again when that has ended", job);
}

StatusOr<CheckpointClaims::Claim> CheckpointClaims::Take(const std::string& job,
                                                         const std::string& name, Work work,
                                                         const Caller& caller) {
  const TimePoint turn = std::min(caller.deadline(), DeadlineAfter(kTurnMs));
  MutexLock lock(mutex_);
  while (true) {
    Status free = Check(job, name, work);
    if (free.ok()) break;
    if (caller.gone() || MillisecondsUntil(turn) == 0) return free;
    released_.WaitUntil(mutex_, std::min(turn, caller.next_look()));
  }
  Job& entry = jobs_[job];
  entry.works[name] = work;
  entry.making = entry.making || work == Work::kMake;
  return Claim(this, job, name, work);
}

void CheckpointClaims::Release(const std::string& job, const std::string& name, Work work) {
  {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(job);
    if (work == Work::kMake) found->second.making = false;
    found->second.works.erase(name);
    if (found->second.works.empty()) jobs_.erase(found);
  }
  released_.NotifyAll();
}

}  // namespace luwu
