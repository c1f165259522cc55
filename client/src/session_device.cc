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
  return SubmitFetch(operation, [this, call, memory, operation] {
    return Explain(device_.Fetch(call, *memory, operation->arrived()));
  });
}

Status Session::StartDevicePush(const std::shared_ptr<Operation>& operation, PushCall call,
                                std::vector<Segment> segments, const DevicePush& how) {
  ASSIGN_OR_RETURN(DeviceCall prepared, device_.Prepare(std::move(segments), how.stream));
  RETURN_IF_ERROR(device_.CheckPush(how.options));
  const auto memory = std::make_shared<const DeviceCall>(std::move(prepared));
  call.queued = true;
  return SubmitPush(operation, call, [this, call, memory, how]() -> Status {
    GradientCheck check;
    RETURN_IF_ERROR(Explain(device_.Push(call, *memory, how.options, &check)));
    if (how.options.check) how.report(check);
    return OkStatus();
  });
}

}  // namespace luwu::client
