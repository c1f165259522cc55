// Holds identities to what their [[access]] entries let them have on this node: sessions, and the
// slots of these. (Memory is granted where jobs are made: job_registry_quota.cc.) What an identity
// has is looked up, not counted along: in the table of sessions, and in claims, which are sessions
// that are being opened.
//
// Owned by the daemon, as is the table. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/service/owner.h"
#include "server/session/session_table.h"

namespace luwu {

class QuotaBook {
 public:
  QuotaBook(const SessionTable* sessions, std::string node)
      : sessions_(sessions), node_(std::move(node)) {}

  struct Claim {
    std::string identity;
    HeldRank rank;
  };
  // Before a session is opened; let go of the claim when it is in the table, or came to nothing.
  // Who takes over a rank of its own has no more than before. kResourceExhausted names the limit.
  StatusOr<std::shared_ptr<const Claim>> BeginSession(const Owner& owner, const HeldRank& rank)
      LUWU_EXCLUDES(mutex_);

 private:
  std::vector<HeldRank> Held(const std::string& identity) LUWU_REQUIRES(mutex_);

  const SessionTable* const sessions_;
  const std::string node_;
  Mutex mutex_;
  std::vector<std::weak_ptr<const Claim>> claims_ LUWU_GUARDED_BY(mutex_);
};

// kResourceExhausted: `what`, and that `key` in the owner's entry may be raised. Also a line in the
// log, "quota_refused", as often as denials are.
Status QuotaError(const Owner& owner, const std::string& key, const std::string& node,
                  const std::string& what);

}  // namespace luwu
