// Who may do what: the [[access]] entries of a daemon, and how a certificate's names and a job's
// name are compared with them. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace luwu {

// The first three: each may do what those before it may. A daemon may do what daemons ask of each
// other, and nothing else; nobody else may do that.
enum class Role : uint8_t { kObserver, kTrainer, kOperator, kDaemon };

std::string_view RoleName(Role role);

// The most that an identity may hold on a node at a time; 0: no limit of its own.
struct Quota {
  uint64_t sessions = 0;
  uint64_t slots = 0;         // of these sessions
  uint64_t memory_bytes = 0;  // of the jobs that it has created

  bool operator==(const Quota&) const = default;
};

struct AccessRule {
  // Of a certificate: a URI ("spiffe://cluster/team-a") or DNS name. Of a user of this host, on the
  // local socket: "uid:1000", or "gid:100" for all of a group.
  std::string identity;
  Role role = Role::kObserver;
  std::vector<std::string> jobs;  // exact names, or "prefix*"; a daemon's are all
  Quota quota = {};

  bool operator==(const AccessRule&) const = default;
};

// kInvalidArgument for what neither a certificate nor a user can be.
Status CheckIdentity(const std::string& identity);
bool IsLocalIdentity(std::string_view identity);  // "uid:..." and "gid:..."
// kInvalidArgument: empty, or a '*' that is not the last character.
Status CheckJobPattern(const std::string& pattern);

// What a caller has shown, kinds apart: by a verified certificate, or by the kernel's word.
struct CallerNames {
  std::vector<std::string> uris = {};
  std::vector<std::string> dns = {};
  std::vector<std::string> local = {};
  // The first of them, for messages; "none" without any.
  std::string text() const;
};
// The first rule, in the order of the configuration, whose identity is one of the names; null:
// none.
const AccessRule* FindRule(const std::vector<AccessRule>& rules, const CallerNames& names);

bool MayTouch(const AccessRule& rule, std::string_view job);

}  // namespace luwu
