// Which durable points are complete: each node says when it has stored its part of one, and when
// the last has said so, everyone who waits for that point or an earlier one is answered. The newest
// complete point is remembered; a report for it or an earlier one is answered at once, so repeats
// are harmless.
//
// Part of a job's coordinator on the lead node. Pure logic: no threads, no RPC. Thread-safe;
// callbacks run without the lock held, on the thread of whoever caused them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/tensor/placement.h"
#include "server/step/step_reporter.h"

namespace luwu {

// A node has stored its part of the point `step`.
struct DurableReport {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t node = 0;
};

class DurableBarrier {
 public:
  // Nodes with a positive weight must report. `confirmed`: the point that the job came back to.
  DurableBarrier(std::string job, uint64_t epoch, std::vector<Node> nodes,
                 std::optional<uint64_t> confirmed);

  // `done` runs once: with OK; with kDeadline naming the nodes that have not reported, from the
  // first Tick after `deadline` (the report stays counted); or at once with kInvalidArgument
  // (unknown node), kStaleEpoch, kResourceExhausted (too many points at once), or the reason of
  // Shutdown.
  void Report(const DurableReport& report, TimePoint deadline, DurableCallback done)
      LUWU_EXCLUDES(mutex_);
  void Await(uint64_t step, TimePoint deadline, DurableCallback done) LUWU_EXCLUDES(mutex_);
  void Tick(TimePoint now) LUWU_EXCLUDES(mutex_);
  void Shutdown(const Status& why) LUWU_EXCLUDES(mutex_);

  std::optional<uint64_t> confirmed() const LUWU_EXCLUDES(mutex_);

 private:
  struct Waiter {
    uint64_t step = 0;
    TimePoint deadline;
    DurableCallback done;
  };

  Status Check(const DurableReport& report) const LUWU_REQUIRES(mutex_);
  // True when this report completes its point.
  bool Note(const DurableReport& report) LUWU_REQUIRES(mutex_);
  bool IsConfirmed(uint64_t step) const LUWU_REQUIRES(mutex_);
  std::vector<DurableCallback> TakeConfirmed() LUWU_REQUIRES(mutex_);
  std::string MissingNodes(uint64_t step) const LUWU_REQUIRES(mutex_);

  const std::string job_;
  const uint64_t epoch_;
  const std::vector<Node> nodes_;
  mutable Mutex mutex_;
  Status shutdown_ LUWU_GUARDED_BY(mutex_);
  std::optional<uint64_t> confirmed_ LUWU_GUARDED_BY(mutex_);
  // Points above `confirmed_`: which nodes have stored them.
  std::map<uint64_t, std::vector<bool>> stored_ LUWU_GUARDED_BY(mutex_);
  std::vector<Waiter> waiters_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
