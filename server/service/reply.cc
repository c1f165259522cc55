#include "server/service/reply.h"

#include <algorithm>
#include <chrono>

namespace luwu {
namespace {

constexpr uint64_t kTimeoutMaxMs = 24ull * 3600 * 1000;

}  // namespace

TimePoint DeadlineOf(const grpc::CallbackServerContext& context, uint64_t timeout_ms) {
  // Both as a time from now: the call's deadline is wall-clock time, infinite when it has none.
  const auto left = std::chrono::duration_cast<Milliseconds>(context.deadline() -
                                                             std::chrono::system_clock::now());
  const auto call_ms = static_cast<uint64_t>(std::max<int64_t>(left.count(), 0));
  return DeadlineAfter(std::min({timeout_ms, call_ms, kTimeoutMaxMs}));
}

}  // namespace luwu
