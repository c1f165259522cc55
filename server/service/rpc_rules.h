// What each call of the control plane needs of its caller, when callers are known by certificates.
// One table; a call that is not in it is refused.
#pragma once

#include <span>
#include <string_view>

#include "common/config/access_rule.h"

namespace luwu {

// Where a request names the job that it is about.
enum class JobIn : uint8_t { kNowhere, kJob, kSpec, kSession };

struct RpcRule {
  std::string_view method;  // "/luwu.v1.JobService/Delete", as gRPC writes it
  Role least = Role::kOperator;
  JobIn job = JobIn::kNowhere;
  bool daemons = false;  // may call it, too
};

std::span<const RpcRule> RpcRules();
const RpcRule* FindRpcRule(std::string_view method);  // null: there is none

// Whether `role` is enough.
bool Allows(const RpcRule& rule, Role role);

}  // namespace luwu
