#include "server/service/identity_use.h"

#include <map>

namespace luwu {

std::vector<IdentityUse> UseByIdentity(const std::vector<AccessRule>& rules,
                                       const SessionTable& sessions, const JobRegistry& jobs) {
  std::vector<IdentityUse> all;
  const std::map<std::string, OwnedJobs> owned = jobs.JobsByOwner();
  for (const AccessRule& rule : rules) {
    if (rule.role != Role::kTrainer && rule.role != Role::kOperator) continue;
    IdentityUse use = {.identity = rule.identity, .role = rule.role, .quota = rule.quota};
    for (const HeldRank& held : sessions.HeldBy(rule.identity)) {
      ++use.sessions;
      use.slots += held.slots;
    }
    if (const auto found = owned.find(rule.identity); found != owned.end()) {
      use.owned = found->second;
    }
    all.push_back(std::move(use));
  }
  return all;
}

}  // namespace luwu
