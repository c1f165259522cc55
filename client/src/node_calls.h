// One control call on every node of a running session at the same time, with the session's
// patience: a node whose control connection fails is asked again until it has been out of reach for
// too long (kNodeLost), or the deadline. The first lasting error of any node ends the round at
// once: nobody waits for nodes that wait for a lost one. Calls are idempotent, so a round may be
// repeated.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/session_rpc.h"

namespace luwu::client {

// Turns what a node answered into what the caller hears: kNodeLost when the node has been out of
// reach for longer than the session's patience, kDeadline when the call's time is over before that,
// nothing when it is to be asked again.
class NodeTrouble {
 public:
  std::optional<Status> Judge(const MonitorLock& lock, Fabric& fabric, uint32_t node,
                              const Status& answer, TimePoint deadline);
  TimePoint retry_at() const { return retry_at_; }

 private:
  std::optional<TimePoint> since_;
  Status why_;  // of the failure that was seen last
  TimePoint retry_at_;
};

// `rpcs` by index in the node list. `start(rpc, done)` makes the call, which must end soon after
// `deadline` by itself. Results are in the order of fabric.active().
template <typename T, typename Start>
StatusOr<std::vector<T>> CallActiveNodes(Fabric& fabric,
                                         const std::vector<std::unique_ptr<NodeRpc>>& rpcs,
                                         TimePoint deadline, const Start& start) {
  struct Entry {
    bool in_flight = false;
    std::optional<StatusOr<T>> answer;
    NodeTrouble trouble;
  };
  const std::vector<uint32_t>& active = fabric.active();
  const auto entries = std::make_shared<std::vector<Entry>>(active.size());
  Waiter waiter(fabric.monitor(), Waiter::Interest::kAllButBoards);
  // The next node to ask; nothing when all have answered well.
  const auto next = [&]() -> StatusOr<std::optional<size_t>> {
    MonitorLock lock(fabric.monitor());
    while (true) {
      RETURN_IF_ERROR(fabric.Health(lock));
      TimePoint wake_at = deadline + Milliseconds(1000);
      bool all_ok = true;
      for (size_t i = 0; i < active.size(); ++i) {
        Entry& entry = (*entries)[i];
        if (entry.answer && entry.answer->ok()) continue;
        all_ok = false;
        if (entry.in_flight) {
          RETURN_IF_ERROR(fabric.CheckNode(lock, active[i]));
          continue;
        }
        if (entry.answer) {
          const auto verdict =
              entry.trouble.Judge(lock, fabric, active[i], entry.answer->status(), deadline);
          if (verdict) return *verdict;
          if (std::chrono::steady_clock::now() < entry.trouble.retry_at()) {
            wake_at = std::min(wake_at, entry.trouble.retry_at());
            continue;
          }
        }
        entry.in_flight = true;
        entry.answer.reset();
        return std::optional<size_t>(i);
      }
      if (all_ok) return std::optional<size_t>();
      fabric.WaitForChange(lock, waiter, wake_at);
    }
  };
  while (true) {
    StatusOr<std::optional<size_t>> ask = next();
    RETURN_IF_ERROR(ask.status());
    if (!ask->has_value()) break;
    const size_t i = **ask;
    start(*rpcs[active[i]], [entries, i, &fabric](StatusOr<T> answer) {
      MonitorLock lock(fabric.monitor());
      (*entries)[i].in_flight = false;
      (*entries)[i].answer = std::move(answer);
      fabric.monitor().Broadcast(lock);
    });
  }
  std::vector<T> results;
  for (Entry& entry : *entries) results.push_back(*std::move(*entry.answer));
  return results;
}

// The same patience for a call on one node that runs on this thread: repeats `call` while it
// answers kUnavailable.
template <typename Call>
Status CallPatiently(Fabric& fabric, uint32_t node, TimePoint deadline, const Call& call) {
  NodeTrouble trouble;
  Waiter waiter(fabric.monitor(), Waiter::Interest::kAllButBoards);
  while (true) {
    const Status status = call();
    if (status.ok()) return status;
    MonitorLock lock(fabric.monitor());
    RETURN_IF_ERROR(fabric.Health(lock));
    if (const auto verdict = trouble.Judge(lock, fabric, node, status, deadline)) return *verdict;
    while (std::chrono::steady_clock::now() < trouble.retry_at()) {
      RETURN_IF_ERROR(fabric.Health(lock));
      waiter.WaitUntil(lock, trouble.retry_at());
    }
  }
}

}  // namespace luwu::client
