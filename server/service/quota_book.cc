#include "server/service/quota_book.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "server/service/denial_log.h"

namespace luwu {

Status QuotaError(const Owner& owner, const std::string& key, const std::string& node,
                  const std::string& what) {
  static DenialLog log;  // a caller that asks for ever must not fill a disk
  uint64_t left_out = 0;
  if (log.Enter(std::chrono::steady_clock::now(), &left_out)) {
    LogWarning("quota_refused", "identity=\"{}\" limit={} why=\"{}\" lines_left_out={}",
               owner.identity, key, what, left_out);
  }
  return Error(ErrorCode::kResourceExhausted,
               "{}; or raise {} in the [[access]] entry of {} on node {}, and restart that daemon",
               what, key, owner.identity, node);
}

std::vector<HeldRank> QuotaBook::Held(const std::string& identity) {
  std::vector<HeldRank> held = sessions_->HeldBy(identity);
  std::erase_if(claims_, [&](const std::weak_ptr<const Claim>& entry) {
    const std::shared_ptr<const Claim> claim = entry.lock();
    if (claim != nullptr && claim->identity == identity) held.push_back(claim->rank);
    return claim == nullptr;
  });
  return held;
}

StatusOr<std::shared_ptr<const QuotaBook::Claim>> QuotaBook::BeginSession(const Owner& owner,
                                                                          const HeldRank& rank) {
  const auto place = [](const HeldRank& held) { return std::pair(held.job, held.rank); };
  MutexLock lock(mutex_);
  std::vector<HeldRank> held = Held(owner.identity);
  std::erase_if(held, [&](const HeldRank& each) { return place(each) == place(rank); });
  // A rank that is being opened may be in the table already.
  std::sort(held.begin(), held.end(),
            [&](const HeldRank& a, const HeldRank& b) { return place(a) < place(b); });
  held.erase(
      std::unique(held.begin(), held.end(),
                  [&](const HeldRank& a, const HeldRank& b) { return place(a) == place(b); }),
      held.end());
  uint64_t slots = 0;
  for (const HeldRank& each : held) slots += each.slots;
  const Quota& quota = owner.quota;
  if (quota.sessions != 0 && held.size() + 1 > quota.sessions) {
    return QuotaError(owner, "sessions_max", node_,
                      fmt::format("{} has {} sessions on node {}, and {} are allowed; close one",
                                  owner.identity, held.size(), node_, quota.sessions));
  }
  if (quota.slots != 0 && slots + rank.slots > quota.slots) {
    return QuotaError(
        owner, "slots_max", node_,
        fmt::format("a session of job '{}' takes {} slots, and {} has {} of {} on node {}; close a "
                    "session, or give the job fewer slots_per_worker",
                    rank.job, rank.slots, owner.identity, slots, quota.slots, node_));
  }
  auto claim = std::make_shared<const Claim>(Claim{owner.identity, rank});
  claims_.push_back(claim);
  return claim;
}

}  // namespace luwu
