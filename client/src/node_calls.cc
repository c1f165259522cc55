#include "client/src/node_calls.h"

namespace luwu::client {
namespace {

constexpr uint64_t kRetryMs = 100;

}  // namespace

std::optional<Status> NodeTrouble::Judge(const MonitorLock& lock, Fabric& fabric, uint32_t node,
                                         const Status& answer, TimePoint deadline) {
  const TimePoint now = std::chrono::steady_clock::now();
  const ErrorCode code = CodeOf(answer);
  if (code == ErrorCode::kFenced || code == ErrorCode::kStaleEpoch ||
      code == ErrorCode::kJobFailed || code == ErrorCode::kRolledBack) {
    fabric.Fail(lock, answer);
    return answer;
  }
  if (code != ErrorCode::kUnavailable && code != ErrorCode::kDeadline) return answer;
  if (const Status verdict = fabric.CheckNode(lock, node); !verdict.ok()) return verdict;
  if (code == ErrorCode::kDeadline) {
    if (fabric.node(node).is_down(lock)) return fabric.node(node).StillDown(lock, now);
    if (!since_) return answer;
    return Error(code, "{} (before that its control connection failed: {})", MessageOf(answer),
                 MessageOf(why_));
  }
  if (!since_) since_ = now;
  why_ = answer;
  retry_at_ = now + Milliseconds(kRetryMs);
  const uint32_t patience_ms = fabric.options().patience_ms;
  const auto failed_ms = std::chrono::duration_cast<Milliseconds>(now - *since_).count();
  if (now >= *since_ + Milliseconds(patience_ms)) {
    return Error(ErrorCode::kNodeLost,
                 "{} is lost: its control connection has failed for {} ms ({}); check the daemon, "
                 "then open a new session",
                 fabric.node(node).Name(), failed_ms, MessageOf(answer));
  }
  if (now < deadline) return std::nullopt;
  return Error(ErrorCode::kDeadline,
               "{}: its control connection has failed for {} ms ({}); repeat the call: the node "
               "counts as lost only after {} ms",
               fabric.node(node).Name(), failed_ms, MessageOf(answer), patience_ms);
}

}  // namespace luwu::client
