#include "server/service/interchange_claims.h"

#include <iterator>
#include <utility>

namespace luwu {

InterchangeClaims::Table::iterator InterchangeClaims::Find(const std::string& key, uint64_t owner) {
  const auto found = claims_.find(key);
  return found != claims_.end() && found->second.owner == owner ? found : claims_.end();
}

void InterchangeClaims::RemoveSilent() {
  MutexLock lock(mutex_);
  RemoveSilentLocked();
}

void InterchangeClaims::RemoveSilentLocked() {
  for (auto at = claims_.begin(); at != claims_.end();) {
    const Claim& claim = at->second;
    const bool silent = claim.calls == 0 && MillisecondsUntil(claim.end) == 0;
    at = silent ? claims_.erase(at) : std::next(at);
  }
}

bool InterchangeClaims::Take(const std::string& key, uint64_t owner, UniqueFd lock) {
  MutexLock mutex_lock(mutex_);
  RemoveSilentLocked();
  Claim& claim = claims_[key];
  const bool is_new = claim.calls == 0 && claim.end == TimePoint();
  if (!is_new && claim.owner != owner) return false;
  claim.owner = owner;
  claim.end = DeadlineAfter(silent_ms_);
  if (lock.valid()) claim.lock = std::move(lock);
  return true;
}

bool InterchangeClaims::BeginCall(const std::string& key, uint64_t owner) {
  MutexLock lock(mutex_);
  const auto found = Find(key, owner);
  if (found == claims_.end()) return false;
  ++found->second.calls;
  return true;
}

void InterchangeClaims::EndCall(const std::string& key, uint64_t owner, bool keep) {
  MutexLock lock(mutex_);
  const auto found = Find(key, owner);
  if (found == claims_.end()) return;
  Claim& claim = found->second;
  --claim.calls;
  claim.given_up |= !keep;
  claim.end = DeadlineAfter(silent_ms_);
  if (claim.calls == 0 && claim.given_up) claims_.erase(found);
}

void InterchangeClaims::Heard(uint64_t owner) {
  MutexLock lock(mutex_);
  for (auto& [key, claim] : claims_) {
    if (claim.owner == owner) claim.end = DeadlineAfter(silent_ms_);
  }
}

void InterchangeClaims::GiveUp(const std::string& key, uint64_t owner) {
  MutexLock lock(mutex_);
  const auto found = Find(key, owner);
  if (found == claims_.end()) return;
  found->second.given_up = true;
  if (found->second.calls == 0) claims_.erase(found);
}

}  // namespace luwu
