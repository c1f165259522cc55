// The session's calls on GPU memory: queued on the same lanes, in the same order, as the others.
#include <utility>

#include "client/src/session.h"

namespace luwu::client {

Status Session::StartDeviceFetch(const std::shared_ptr<DeviceFetchOperation>& operation,
                                 const FetchCall& call, std::vector<Segment> segments,
                                 cuda::Stream stream) {
  ASSIGN_OR_RETURN(DeviceCall prepared, device_.Prepare(std::move(segments), stream));
  RETURN_IF_ERROR(device_.Arm(prepared, operation.get()));
  // A task is copyable.
  const auto memory = std::make_shared<const DeviceCall>(std::move(prepared));
  fabric_->counters().operations.fetch_add(1, std::memory_order_relaxed);
  const Status submitted = fetch_lane_.Submit([this, call, memory, operation](bool cancelled) {
    Status status = Error(ErrorCode::kCancelled, "the session was closed");
    if (!cancelled) status = Explain(device_.Fetch(call, *memory, operation->arrived()));
    FinishOperation(*operation, status);
  });
  if (!submitted.ok()) fabric_->counters().operations.fetch_sub(1, std::memory_order_relaxed);
  return submitted;
}

Status Session::StartDevicePush(const std::shared_ptr<Operation>& operation, PushCall call,
                                std::vector<Segment> segments, const DevicePush& how) {
  ASSIGN_OR_RETURN(DeviceCall prepared, device_.Prepare(std::move(segments), how.stream));
  RETURN_IF_ERROR(device_.CheckPush(how.options));
  const auto memory = std::make_shared<const DeviceCall>(std::move(prepared));
  RETURN_IF_ERROR(push_.Queue(call.layer, call.close));
  call.queued = true;
  fabric_->counters().operations.fetch_add(1, std::memory_order_relaxed);
  const Status submitted = push_lane_.Submit([this, call, memory, how, operation](bool cancelled) {
    Status status = Error(ErrorCode::kCancelled, "the session was closed");
    if (!cancelled) {
      GradientCheck check;
      status = Explain(device_.Push(call, *memory, how.options, &check));
      if (status.ok() && how.options.check) how.report(check);
    }
    push_.EndQueued();
    FinishOperation(*operation, status);
  });
  if (submitted.ok()) return submitted;
  push_.Unqueue(call.layer, call.close);
  fabric_->counters().operations.fetch_sub(1, std::memory_order_relaxed);
  return submitted;
}

}  // namespace luwu::client
