#include "common/base/status.h"

#include <absl/strings/cord.h>

#include "common/base/check.h"

namespace luwu {
namespace {

constexpr char kPayloadUrl[] = "luwu.error_code";

absl::StatusCode CanonicalCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return absl::StatusCode::kOk;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kBadHandle:
    case ErrorCode::kBadStruct:
    case ErrorCode::kSchemaMismatch:
      return absl::StatusCode::kInvalidArgument;
    case ErrorCode::kAbiVersion:
    case ErrorCode::kUnsupported:
      return absl::StatusCode::kUnimplemented;
    case ErrorCode::kNotFound:
      return absl::StatusCode::kNotFound;
    case ErrorCode::kPermission:
      return absl::StatusCode::kPermissionDenied;
    case ErrorCode::kState:
    case ErrorCode::kLayerClosed:
    case ErrorCode::kStaleVersion:
    case ErrorCode::kStepMismatch:
    case ErrorCode::kJobFailed:
    case ErrorCode::kRolledBack:
      return absl::StatusCode::kFailedPrecondition;
    case ErrorCode::kRankTaken:
    case ErrorCode::kAlreadyExists:
      return absl::StatusCode::kAlreadyExists;
    case ErrorCode::kResourceExhausted:
      return absl::StatusCode::kResourceExhausted;
    case ErrorCode::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    case ErrorCode::kCancelled:
      return absl::StatusCode::kCancelled;
    case ErrorCode::kFenced:
    case ErrorCode::kStaleEpoch:
      return absl::StatusCode::kAborted;
    case ErrorCode::kWorkerLost:
    case ErrorCode::kUnavailable:
    case ErrorCode::kNodeLost:
      return absl::StatusCode::kUnavailable;
    case ErrorCode::kCorrupt:
      return absl::StatusCode::kDataLoss;
    case ErrorCode::kInternal:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

ErrorCode FromCanonical(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return ErrorCode::kOk;
    case absl::StatusCode::kCancelled:
      return ErrorCode::kCancelled;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return ErrorCode::kInvalidArgument;
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorCode::kDeadline;
    case absl::StatusCode::kNotFound:
      return ErrorCode::kNotFound;
    case absl::StatusCode::kAlreadyExists:
      return ErrorCode::kAlreadyExists;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ErrorCode::kPermission;
    case absl::StatusCode::kResourceExhausted:
      return ErrorCode::kResourceExhausted;
    case absl::StatusCode::kFailedPrecondition:
      return ErrorCode::kState;
    case absl::StatusCode::kAborted:
      return ErrorCode::kFenced;
    case absl::StatusCode::kUnimplemented:
      return ErrorCode::kUnsupported;
    case absl::StatusCode::kUnavailable:
      return ErrorCode::kUnavailable;
    case absl::StatusCode::kDataLoss:
      return ErrorCode::kCorrupt;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kBadHandle:
      return "bad handle";
    case ErrorCode::kBadStruct:
      return "bad struct size";
    case ErrorCode::kAbiVersion:
      return "ABI version mismatch";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kSchemaMismatch:
      return "schema mismatch";
    case ErrorCode::kPermission:
      return "permission denied";
    case ErrorCode::kState:
      return "wrong state";
    case ErrorCode::kLayerClosed:
      return "layer closed";
    case ErrorCode::kStaleVersion:
      return "stale version";
    case ErrorCode::kStepMismatch:
      return "step mismatch";
    case ErrorCode::kRankTaken:
      return "rank taken";
    case ErrorCode::kResourceExhausted:
      return "resource exhausted";
    case ErrorCode::kAlreadyExists:
      return "already exists";
    case ErrorCode::kDeadline:
      return "deadline exceeded";
    case ErrorCode::kWorkerLost:
      return "worker lost";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kFenced:
      return "fenced";
    case ErrorCode::kNodeLost:
      return "node lost";
    case ErrorCode::kStaleEpoch:
      return "stale epoch";
    case ErrorCode::kJobFailed:
      return "job failed";
    case ErrorCode::kRolledBack:
      return "rolled back";
    case ErrorCode::kCorrupt:
      return "corrupt data";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

Status MakeError(ErrorCode code, const std::string& message) {
  LUWU_CHECK(code != ErrorCode::kOk, "an error needs an error code");
  Status status(CanonicalCode(code), message);
  status.SetPayload(kPayloadUrl, absl::Cord(std::to_string(static_cast<int32_t>(code))));
  return status;
}

ErrorCode CodeOf(const Status& status) {
  if (status.ok()) return ErrorCode::kOk;
  if (auto payload = status.GetPayload(kPayloadUrl)) {
    const std::string text(*payload);
    return static_cast<ErrorCode>(std::atoi(text.c_str()));
  }
  return FromCanonical(status.code());
}

std::string MessageOf(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

std::string ToString(const Status& status) {
  if (status.ok()) return "ok";
  return fmt::format("{}: {}", ErrorCodeName(CodeOf(status)), MessageOf(status));
}

Status Annotate(const Status& status, const std::string& context) {
  if (status.ok()) return status;
  return MakeError(CodeOf(status), fmt::format("{}: {}", context, MessageOf(status)));
}

}  // namespace luwu
