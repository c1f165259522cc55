// luwu.h: fetches into and pushes from GPU memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "client/include/luwu/luwu.h"
#include "client/src/c_api_layer.h"
#include "client/src/c_structs.h"
#include "client/src/device_transfers.h"
#include "client/src/library.h"

namespace {

using luwu::DeadlineAfter;
using luwu::Error;
using luwu::ErrorCode;
using luwu::OkStatus;
using luwu::Status;
using luwu::StatusOr;
using luwu::client::DeviceFetchOperation;
using luwu::client::FindForLayer;
using luwu::client::GiveOut;
using luwu::client::Guarded;
using luwu::client::GuardedIn;
using luwu::client::Operation;
using luwu::client::Segment;
using luwu::client::Session;

luwu::client::cuda::Stream ToStream(luwu_stream stream) {
  return static_cast<luwu::client::cuda::Stream>(stream);
}

template <size_t N>
void CopyText(const std::string& text, char (&buffer)[N]) {
  const size_t bytes = std::min(text.size(), N - 1);
  std::memcpy(buffer, text.data(), bytes);
  buffer[bytes] = '\0';
}

StatusOr<Session::DevicePush> ToDevicePush(const luwu_device_push& in) {
  Session::DevicePush out;
  out.stream = ToStream(in.stream);
  const auto scale = static_cast<float>(in.scale);
  if (!std::isfinite(scale) || (scale == 0.0f && in.scale != 0)) {
    return Error(ErrorCode::kInvalidArgument, "how.scale is {}; it must be a finite float",
                 in.scale);
  }
  if (in.scale != 0) out.options.scale = scale;
  if (in.check == nullptr) return out;
  RETURN_IF_ERROR(luwu::client::CheckStruct(in.check, "how.check"));
  out.options.check = true;
  out.report = [check = in.check](const luwu::client::GradientCheck& found) {
    luwu_gradient_check values = {};
    values.non_finite = found.non_finite;
    values.square_sum = found.square_sum;
    luwu::client::CopyOut(values, check);
  };
  return out;
}

}  // namespace

extern "C" {

int32_t luwu_fetch_device(luwu_session session, uint32_t layer, uint64_t version,
                          const luwu_segment* segments, uint32_t segment_count, luwu_stream stream,
                          uint32_t timeout_ms, luwu_op* op) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(op, "op"));
    *op = 0;
    std::vector<Segment> prepared;
    RETURN_IF_ERROR(luwu::client::Prepare(*found, layer, {segments, segment_count}, &prepared));
    const luwu::client::FetchCall call{layer, version, DeadlineAfter(timeout_ms)};
    return GiveOut<DeviceFetchOperation>(op, [&](const auto& operation) {
      return found->StartDeviceFetch(operation, call, std::move(prepared), ToStream(stream));
    });
  });
}

int32_t luwu_push_device(luwu_session session, uint32_t layer, const luwu_segment* segments,
                         uint32_t segment_count, const luwu_device_push* how, uint32_t timeout_ms,
                         luwu_op* op) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(op, "op"));
    *op = 0;
    RETURN_IF_ERROR(luwu::client::CheckStruct(how, "how"));
    ASSIGN_OR_RETURN(const bool close, luwu::client::ToClose(how->flags));
    ASSIGN_OR_RETURN(const Session::DevicePush push, ToDevicePush(*how));
    std::vector<Segment> prepared;
    RETURN_IF_ERROR(luwu::client::PreparePush(*found, layer, {segments, segment_count}, &prepared));
    const luwu::client::PushCall call{
        .layer = layer, .close = close, .deadline = DeadlineAfter(timeout_ms)};
    return GiveOut<Operation>(op, [&](const auto& operation) {
      return found->StartDevicePush(operation, call, std::move(prepared), push);
    });
  });
}

int32_t luwu_session_get_device_info(luwu_session session, luwu_device_info* info) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, luwu::client::Library::Get().FindSession(session));
    RETURN_IF_ERROR(luwu::client::CheckStruct(info, "info"));
    const luwu::client::DeviceInfo values = found->GpuInfo();
    luwu_device_info out = {};
    out.used = values.used;
    out.ordinal = values.ordinal;
    out.kernels = values.kernels;
    out.pinned_bytes = values.pinned_bytes;
    out.fetched_bytes = values.fetched_bytes;
    out.pushed_bytes = values.pushed_bytes;
    CopyText(values.name, out.name);
    CopyText(values.no_kernels, out.no_kernels);
    luwu::client::CopyOut(out, info);
    return OkStatus();
  });
}

}  // extern "C"
