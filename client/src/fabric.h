// What the parts of a session share: the layout of the job, the data plane of each node, the
// monitor, whether the session is still alive, and counters. Owned by the session; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/model_plan.h"
#include "client/src/monitor.h"
#include "client/src/node_link.h"
#include "client/src/step_progress.h"
#include "common/base/status.h"

namespace luwu::client {

enum class VerifyPayload : uint8_t { kOverTcp = 0, kAlways = 1, kNever = 2 };

struct FabricOptions {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  VerifyPayload verify = VerifyPayload::kOverTcp;
  uint32_t patience_ms = 0;  // how long a node may be out of reach
};

struct Counters {
  std::atomic<uint64_t> fetched_bytes{0};
  std::atomic<uint64_t> pushed_bytes{0};
  std::atomic<uint64_t> retries{0};
  std::atomic<uint32_t> operations{0};
};

class Fabric {
 public:
  Fabric(ModelPlan plan, FabricOptions options, uint64_t current_step);
  // Nodes with a positive weight, in list order; called while opening, before anyone else looks.
  void AddNode(uint32_t index, std::unique_ptr<NodeLink> link);

  const ModelPlan& plan() const { return plan_; }
  const FabricOptions& options() const { return options_; }
  Monitor& monitor() { return monitor_; }
  Counters& counters() { return counters_; }
  StepProgress& progress(const MonitorLock&) { return progress_; }

  // Indices (in the node list) of the nodes that take part.
  const std::vector<uint32_t>& active() const { return active_; }
  NodeLink& node(uint32_t index) { return *nodes_[index]; }

  // Why nothing can go on: the session was closed, fenced, or its job has failed. OK while alive.
  Status Health(const MonitorLock&) const { return health_; }
  // The first reason stays. Wakes everyone.
  void Fail(const MonitorLock& lock, const Status& why);
  // Health, then the verdict on one node.
  Status CheckNode(const MonitorLock& lock, uint32_t node);
  // For whoever is about to wait: a step ends on all nodes or on none, so that no version and no
  // credit comes any more once one node is lost.
  Status CheckAllNodes(const MonitorLock& lock);
  // What a deadline is blamed on: kDeadline naming the first node that is out of reach now; nothing
  // when all are up. Whether it is lost CheckAllNodes says.
  std::optional<Status> FirstDown(const MonitorLock& lock);

  // Waits for a change, at most until `deadline` or until a node that is down turns lost.
  void WaitForChange(const MonitorLock& lock, Waiter& waiter, TimePoint deadline);

 private:
  const ModelPlan plan_;
  const FabricOptions options_;
  Monitor monitor_;
  Counters counters_;
  std::vector<std::unique_ptr<NodeLink>> nodes_;  // null: weight 0
  std::vector<uint32_t> active_;
  // Guarded by the monitor.
  StepProgress progress_;
  Status health_;
};

}  // namespace luwu::client
