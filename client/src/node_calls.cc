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
      code == ErrorCode::kJobFailed) {
    fabric.Fail(lock, answer);
    return answer;
  }
  if (code != ErrorCode::kUnavailable) {
    if (code == ErrorCode::kDeadline && fabric.node(node).is_down(lock)) {
      return fabric.node(node).Unreachable(lock, now);
    }
    return answer;
  }
  if (!since_) since_ = now;
  retry_at_ = now + Milliseconds(kRetryMs);
  if (now < *since_ + Milliseconds(fabric.options().patience_ms) && now < deadline) {
    if (const Status verdict = fabric.CheckNode(lock, node); !verdict.ok()) return verdict;
    return std::nullopt;
  }
  return Error(ErrorCode::kNodeLost,
               "{} is lost: its control connection has failed for {} ms ({}); check the daemon, "
               "then open a new session",
               fabric.node(node).Name(),
               std::chrono::duration_cast<Milliseconds>(now - *since_).count(), MessageOf(answer));
}

}  // namespace luwu::client
