// How the lead node of a job decides each step: it collects the report of every node, decides once
// when the last one has come, and gives everyone the same answer. Reports of the lead's own job and
// of other nodes come in through the same method. A repeated report changes nothing; one for a step
// already decided gets the remembered decision (the last few are kept; a node is never more than
// one step behind).
//
// It also keeps the job's loss scale, and turns the nodes' exact sums of squares into norms and
// clip factors: the bits of a decision do not depend on how many nodes there are, nor on who came
// first.
//
// The same for durable points: every node says when it has stored its part of one, and all are
// answered when the last has (durable_barrier.h). A job that comes back to a point begins at it.
//
// A checkpoint may hold the decision of the open step for a moment, so that no node leaves the step
// while all of them are asked to make a point of it.
//
// Pure logic: no threads, no RPC. Thread-safe; callbacks run without the lock held, on the thread
// of whoever caused them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "server/cluster/durable_barrier.h"
#include "server/cluster/loss_scale.h"
#include "server/persist/generation.h"
#include "server/step/step_reporter.h"

namespace luwu {

struct CoordinatorOptions {
  std::string job;
  uint64_t epoch = 0;
  std::vector<Node> nodes;  // those with a positive weight must report
  NonFinitePolicy on_non_finite = NonFinitePolicy::kUnspecified;
  ClipScope clip_scope = ClipScope::kNone;
  uint32_t clip_units = 1;
  LossScaling loss_scaling = {};
  std::optional<persist::Point> restored = std::nullopt;  // the job begins here, else at step 0
};
CoordinatorOptions CoordinatorOptionsFor(const JobSpec& spec, uint64_t epoch,
                                         std::vector<Node> nodes);

// What a node says about the end of a step.
struct StepReport {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t node = 0;
  StepFindings findings;
};

class CommitCoordinator {
 public:
  explicit CommitCoordinator(CoordinatorOptions options);
  // Ends the waits that are left with kCancelled.
  ~CommitCoordinator();

  // `done` runs once: with the decision; with kDeadline naming the nodes that have not reported,
  // from the first Tick after `deadline` (the report stays counted); or at once with
  // kInvalidArgument (unknown node; other norm limits than another node's, which is named),
  // kStaleEpoch, kStepMismatch, or the reason of Shutdown.
  void Report(const StepReport& report, TimePoint deadline, DecisionCallback done)
      LUWU_EXCLUDES(mutex_);
  // `done` runs once: with OK when every node has stored its part of the point (or of a later one);
  // else as above.
  void ReportDurable(const DurableReport& report, TimePoint deadline, DurableCallback done)
      LUWU_EXCLUDES(mutex_);
  // The same without a report of one's own.
  void AwaitDurable(uint64_t step, TimePoint deadline, DurableCallback done) LUWU_EXCLUDES(mutex_);
  // The step of the newest point that every node has.
  std::optional<uint64_t> durable_step() const { return durable_.confirmed(); }

  // The job was loaded with state of that step and goes on there. Idempotent; kState when nodes
  // have reported already.
  Status StartAt(uint64_t step, float loss_scale, uint32_t finite_steps) LUWU_EXCLUDES(mutex_);

  // The open step, which is not decided before Release or the first Tick after `until`. kState when
  // it is held already.
  StatusOr<uint64_t> Hold(TimePoint until) LUWU_EXCLUDES(mutex_);
  void Release() LUWU_EXCLUDES(mutex_);

  void Tick(TimePoint now) LUWU_EXCLUDES(mutex_);
  // Ends all waits with `why`; later reports are answered with it.
  void Shutdown(const Status& why) LUWU_EXCLUDES(mutex_);

  uint32_t clip_units() const { return options_.clip_units; }
  // The first step that has not been decided.
  uint64_t next_step() const LUWU_EXCLUDES(mutex_);

 private:
  struct Waiter {
    TimePoint deadline;
    DecisionCallback done;
  };
  struct Decided {
    uint64_t step = 0;
    StepDecision decision;
  };

  Status CheckReport(const StepReport& report) const LUWU_REQUIRES(mutex_);
  const StepDecision* FindDecided(uint64_t step) const LUWU_REQUIRES(mutex_);
  bool AllReported() const LUWU_REQUIRES(mutex_);
  Status CheckFindings(const StepReport& report) const LUWU_REQUIRES(mutex_);
  StepDecision Decide() LUWU_REQUIRES(mutex_);
  // Decides when all have reported and nobody holds the step: who is to be told, and what.
  std::vector<DecisionCallback> TryDecide(StatusOr<StepDecision>* answer) LUWU_REQUIRES(mutex_);
  void DecideNorms(StepDecision* decision) const LUWU_REQUIRES(mutex_);
  std::string MissingNodes() const LUWU_REQUIRES(mutex_);

  const CoordinatorOptions options_;
  mutable Mutex mutex_;
  Status shutdown_ LUWU_GUARDED_BY(mutex_);
  uint64_t next_step_ LUWU_GUARDED_BY(mutex_) = 0;
  LossScale loss_scale_ LUWU_GUARDED_BY(mutex_);  // of next_step_
  // Of next_step_, by node.
  std::vector<std::optional<StepFindings>> reported_ LUWU_GUARDED_BY(mutex_);
  std::vector<Waiter> waiters_ LUWU_GUARDED_BY(mutex_);
  std::deque<Decided> decided_ LUWU_GUARDED_BY(mutex_);  // oldest first
  std::optional<TimePoint> held_until_ LUWU_GUARDED_BY(mutex_);
  DurableBarrier durable_;
};

}  // namespace luwu
