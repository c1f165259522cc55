// Named checkpoints of a job, on its lead node: makes a point of the open step on all nodes while
// training goes on and keeps it under a name; lists, drops and goes back to such points.
//
// How a checkpoint comes to be: the decision of the open step s is held for as long as it takes to
// ask every node for a point of s (a node that updates in place can do that for s + 1 only), then
// let go; the nodes store, and when all have, each keeps the point. Should a newer point have
// replaced it before that, it is made once more with the decision held until the end.
//
// Calls block: Create and Restore on the queue "luwu-points", as long as it takes; List and Delete
// on "luwu-lists", so that they do not stand behind those. A call ends when its caller has gone.
// Thread-safe: of one job one checkpoint is made at a time, and with one checkpoint one thing done.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/persist/generation.h"
#include "server/service/caller.h"
#include "server/service/checkpoint_claims.h"
#include "server/service/job_registry.h"
#include "server/service/peer_client.h"
#include "server/service/recovery_driver.h"

namespace luwu {

class CheckpointMaker {
 public:
  // All outlive this. `recovery` may be null on a node without a data directory.
  CheckpointMaker(JobRegistry* registry, PeerClient* peers, RecoveryDriver* recovery)
      : registry_(registry), peers_(peers), recovery_(recovery) {}

  // Errors name every node that failed or has not answered by the deadline.
  // kUnsupported on a node that is not the lead, and without a data directory; kAlreadyExists;
  // kState while the job has no weights, or another checkpoint of it is being made; kDeadline
  // naming who has not stored its part.
  StatusOr<persist::Checkpoint> Create(const std::string& job, const std::string& name,
                                       const Caller& caller);
  // Those that all nodes have, oldest first.
  StatusOr<std::vector<persist::Checkpoint>> List(const std::string& job, TimePoint deadline);
  // On all nodes that have it. kNotFound when none has; kState while it is made or restored.
  Status Delete(const std::string& job, const std::string& name, const Caller& caller);
  // kNotFound when some node does not have it.
  StatusOr<persist::Point> Restore(const std::string& job, const std::string& name,
                                   const Caller& caller);

 private:
  enum class Hold : uint8_t { kWhileAsking, kUntilKept };
  Status CheckPlace(const std::string& job) const;
  StatusOr<persist::Checkpoint> TryCreate(const std::string& job, const std::string& name,
                                          const Caller& caller, Hold hold);
  Status Drop(const std::string& job, const std::string& name, TimePoint deadline);
  StatusOr<uint64_t> BeginPoint(PeerClient::PointRequest point, TimePoint deadline);
  Status AskForPoint(const PeerClient::PointRequest& point, TimePoint deadline);
  Status Keep(const CheckpointRequest& request, TimePoint deadline);
  std::vector<StatusOr<StoredPoints>> AskStored(const std::string& job, TimePoint deadline);
  std::vector<uint32_t> Participants() const;

  JobRegistry* const registry_;
  PeerClient* const peers_;
  RecoveryDriver* const recovery_;
  CheckpointClaims claims_;
};

}  // namespace luwu
