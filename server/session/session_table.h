// All sessions of this daemon by id: where the control plane and the acceptor look them up.
// Thread-safe. Create it before the acceptor and destroy it after.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/transport/connect.h"
#include "server/session/session.h"

namespace luwu {

// A rank of a job that somebody holds on this node, and what goes with it.
struct HeldRank {
  std::string job;
  uint32_t rank = 0;
  uint32_t slots = 0;
};

class SessionTable final : public transport::SessionAuthority {
 public:
  void Insert(const std::shared_ptr<Session>& session);
  // Why the session ended is remembered for a while, for whoever still names it.
  void Erase(uint64_t session_id);
  // Why a session ended that was erased; kFenced when nobody knows any more, or it never was.
  StatusOr<std::shared_ptr<Session>> Find(uint64_t session_id) const;
  // By the sessions of this owner (WorkerIdentity::owner).
  std::vector<HeldRank> HeldBy(const std::string& owner) const;

  // transport::SessionAuthority, on the progress thread.
  StatusOr<transport::SessionTerms> Lookup(uint64_t session_id) override;
  transport::LinkEvents* OnLink(uint64_t session_id,
                                std::unique_ptr<transport::Endpoint> endpoint) override;

  // Closes links that came up after their session was gone. Called by the housekeeping of the jobs,
  // and once more before the acceptor is destroyed. Not on the progress thread.
  void Sweep();

 private:
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<transport::Endpoint>> strays_ LUWU_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Session>> sessions_ LUWU_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Status> ended_ LUWU_GUARDED_BY(mutex_);
  std::deque<uint64_t> ended_order_ LUWU_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace luwu
