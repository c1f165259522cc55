#include "client/src/fabric.h"

#include <algorithm>
#include <utility>

namespace luwu::client {

Fabric::Fabric(ModelPlan plan, FabricOptions options, uint64_t current_step)
    : plan_(std::move(plan)),
      options_(options),
      nodes_(plan_.nodes().size()),
      progress_(plan_, current_step) {}

void Fabric::AddNode(uint32_t index, std::unique_ptr<NodeLink> link) {
  nodes_[index] = std::move(link);
  active_.push_back(index);
}

void Fabric::Fail(const MonitorLock& lock, const Status& why) {
  if (!health_.ok()) return;
  health_ = why;
  monitor_.Broadcast(lock);
}

Status Fabric::CheckNode(const MonitorLock& lock, uint32_t node) {
  if (!health_.ok()) return health_;
  return nodes_[node]->Verdict(lock, std::chrono::steady_clock::now());
}

Status Fabric::CheckAllNodes(const MonitorLock& lock) {
  for (const uint32_t node : active_) RETURN_IF_ERROR(CheckNode(lock, node));
  return health_;
}

std::optional<Status> Fabric::FirstDown(const MonitorLock& lock) {
  for (const uint32_t node : active_) {
    if (nodes_[node]->is_down(lock)) {
      return nodes_[node]->StillDown(lock, std::chrono::steady_clock::now());
    }
  }
  return std::nullopt;
}

void Fabric::WaitForChange(const MonitorLock& lock, Waiter& waiter, TimePoint deadline) {
  for (const uint32_t node : active_) {
    if (const auto lost_at = nodes_[node]->lost_at(lock)) deadline = std::min(deadline, *lost_at);
  }
  waiter.WaitUntil(lock, deadline);
}

}  // namespace luwu::client
