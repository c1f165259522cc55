// What each identity has on this node, beside what it may have; for status and metrics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/access_rule.h"
#include "server/service/job_registry.h"
#include "server/session/session_table.h"

namespace luwu {

struct IdentityUse {
  std::string identity;
  Role role = Role::kObserver;
  uint64_t sessions = 0;
  uint64_t slots = 0;
  OwnedJobs owned = {};
  Quota quota = {};  // zeros: no limit
};

// Of those that may have anything (trainers and operators), in the order of the rules. Takes the
// locks of both, one after the other.
std::vector<IdentityUse> UseByIdentity(const std::vector<AccessRule>& rules,
                                       const SessionTable& sessions, const JobRegistry& jobs);

}  // namespace luwu
