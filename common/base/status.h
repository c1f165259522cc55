// Status values: absl::Status with a LuWu ErrorCode attached, and fmt-style makers. Every fallible
// function returns one; exceptions never cross a function boundary of ours.
//
// A message says what failed, on which object, and what the caller can do.
#pragma once

#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include "common/base/error_code.h"

namespace luwu {

using absl::Status;
using absl::StatusOr;

inline Status OkStatus() { return absl::OkStatus(); }

// A status with `code` and `message`. CHECKs that code is not kOk.
Status MakeError(ErrorCode code, const std::string& message);

template <typename... Args>
Status Error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(code, fmt::format(format, std::forward<Args>(args)...));
}

// The LuWu code of a status; statuses made elsewhere (gRPC, Abseil) map to the nearest code.
ErrorCode CodeOf(const Status& status);

// "worker lost: rank 1 (pid 42) ..." for logs; "ok" for OK.
std::string ToString(const Status& status);

// The message alone, as std::string.
std::string MessageOf(const Status& status);

// `status` with "context: " before its message; the code stays. OK stays OK.
Status Annotate(const Status& status, const std::string& context);

}  // namespace luwu

#define LUWU_STATUS_CONCAT_INNER(a, b) a##b
#define LUWU_STATUS_CONCAT(a, b) LUWU_STATUS_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                                          \
  do {                                                                                       \
    if (::absl::Status luwu_status_ = (expression); !luwu_status_.ok()) return luwu_status_; \
  } while (false)

#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_IMPL(LUWU_STATUS_CONCAT(luwu_or_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_IMPL(holder, target, expression) \
  auto holder = (expression);                             \
  if (!holder.ok()) return std::move(holder).status();    \
  target = *std::move(holder)
