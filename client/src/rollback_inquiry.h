// Whether a session has ended because its job was rolled back. A daemon that was restarted knows
// nothing of a session, one that was lost answers nothing: the same errors as when a worker was
// fenced or a machine died. So after such an error the daemons are asked where the job stands;
// while it is recovering the answer is waited for, at most for the session's patience.
//
// Asked on the thread of the call that failed, any; one asks, the others wait for what it learns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/session_rpc.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace luwu::client {

class RollbackInquiry {
 public:
  struct Origin {
    uint32_t lead = 0;     // of the job, by index in the node list
    uint64_t lineage = 0;  // the job's first epoch
  };
  // Both outlive this.
  RollbackInquiry(Fabric* fabric, const std::vector<std::unique_ptr<NodeRpc>>* rpcs, Origin origin)
      : fabric_(fabric), rpcs_(rpcs), origin_(origin) {}

  static bool MayBeOne(ErrorCode code) {
    return code == ErrorCode::kFenced || code == ErrorCode::kStaleEpoch ||
           code == ErrorCode::kNodeLost || code == ErrorCode::kRolledBack ||
           code == ErrorCode::kNotFound;
  }

  // kRolledBack with the step; kJobFailed when the job cannot come back; else `why`.
  Status Explain(const Status& why) LUWU_EXCLUDES(mutex_);
  // That the job went back to; known after an Explain that said so.
  std::optional<uint64_t> step() const LUWU_EXCLUDES(step_mutex_);

 private:
  enum class Finding : uint8_t { kUnchanged, kMoved, kRecovering, kLost, kUnknown, kClosed };
  Finding Ask(TimePoint deadline, JobState* state, std::string* detail);
  Status Moved(const JobState& state) LUWU_REQUIRES(mutex_);
  const std::string& job() const { return fabric_->plan().spec().name; }

  Fabric* const fabric_;
  const std::vector<std::unique_ptr<NodeRpc>>* const rpcs_;
  const Origin origin_;
  Mutex mutex_;
  Status verdict_ LUWU_GUARDED_BY(mutex_);
  mutable Mutex step_mutex_;
  std::optional<uint64_t> step_ LUWU_GUARDED_BY(step_mutex_);
};

}  // namespace luwu::client
