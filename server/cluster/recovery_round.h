// One attempt to bring a job back on all nodes together (docs/DURABILITY.md, "Coming back"): asks
// every node to prepare, finds the newest point that all of them have, tells the other nodes and
// then the lead to roll back to it. What is asked whom next, and what follows from the answers;
// asking is somebody else's (server/service/recovery_driver.h).
//
// Errors that pass (a node is down, busy, short of memory) leave the node to be asked again. A node
// that was restarted in the meantime makes a new round necessary, and so does one that could not
// read its copy of the point: that may pass, too (a device that was reset, a path that came back),
// and the points before it are older than what was acknowledged. So the same point is tried again,
// with growing pauses, and left out only when it has failed kReadsMax times. A node that does not
// have the job, or a job without a common point that can be read, ends it.
//
// Pure logic: no threads, no RPC, no clock. Not thread-safe: the driver's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/placement.h"
#include "server/persist/generation.h"

namespace luwu {

// What a node has stored of a job.
struct StoredPoints {
  std::vector<persist::Point> points;  // ascending
  std::vector<persist::Checkpoint> checkpoints;
};

// (step, epoch) is what names a point on all nodes.
inline bool SamePoint(const persist::Point& one, const persist::Point& other) {
  return one.step == other.step && one.epoch == other.epoch;
}

// A point that some node could not read.
struct DoubtfulPoint {
  persist::Point point;
  uint32_t failures = 0;  // in a row
  std::string why;        // the last one: names node and shard
};

class RecoveryRound {
 public:
  static constexpr uint32_t kReadsMax = 6;  // of one point, before it counts as damaged

  enum class Phase : uint8_t {
    kPreparing,        // nodes stop and say what they have
    kRollingBack,      // all but the lead go back to the target
    kRollingBackLead,  // the lead does; then the job is served again
    kDone,
    kAgain,       // a new round is necessary
    kImpossible,  // reason() says why
  };
  struct Options {
    std::string job;
    std::vector<Node> nodes;  // those with a positive weight take part
    uint32_t lead = 0;
    std::string checkpoint = {};               // the target; empty: the newest common point
    std::vector<DoubtfulPoint> doubtful = {};  // of the rounds before
  };
  explicit RecoveryRound(Options options);

  Phase phase() const { return phase_; }
  // Nodes that are still to be asked in this phase.
  std::vector<uint32_t> Pending() const;
  void OnPrepared(uint32_t node, const StatusOr<StoredPoints>& answer);
  // A checkpoint as target is noted by the lead before the first node goes back: whether it was.
  // An error that passes is waited for.
  void OnNoted(const Status& noted);
  void OnRolledBack(uint32_t node, const Status& answer);

  // From kRollingBack on.
  const persist::Point& target() const { return *target_; }
  // For the round that follows kAgain.
  const std::vector<DoubtfulPoint>& doubtful() const { return options_.doubtful; }
  // How long to wait before it: 0 unless a read has failed.
  uint64_t pause_ms() const { return pause_ms_; }
  const std::string& checkpoint() const { return options_.checkpoint; }
  // The job was deleted.
  void GiveUp(const std::string& why) { End(Phase::kImpossible, why); }
  // Of what the round waits for; kOk when it is an answer.
  ErrorCode waits_code() const { return waits_code_; }
  // What the round waits for, or why it ended.
  const std::string& reason() const { return reason_; }

 private:
  bool IsDamaged(const persist::Point& point) const;
  void OnUnreadable(const std::string& what);
  std::string DescribeDamaged() const;
  bool AllHave(const persist::Point& point) const;
  std::optional<persist::Point> NewestCommon() const;
  std::optional<persist::Point> CommonCheckpoint() const;
  void ChooseTarget();
  void End(Phase phase, std::string reason);
  void WaitFor(std::string reason, ErrorCode code);
  std::string NameOf(uint32_t node) const { return "node " + options_.nodes[node].name; }

  Options options_;
  Phase phase_ = Phase::kPreparing;
  std::vector<std::optional<StoredPoints>> stored_;  // by node
  std::vector<bool> rolled_back_;
  std::optional<persist::Point> target_;
  std::string reason_;
  ErrorCode waits_code_ = ErrorCode::kOk;
  uint64_t pause_ms_ = 0;
};

}  // namespace luwu
