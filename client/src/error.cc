#include "client/src/error.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "client/include/luwu/luwu.h"

namespace luwu::client {
namespace {

#define LUWU_SAME_CODE(abi, ours) \
  static_assert(abi == static_cast<int32_t>(ErrorCode::ours), "luwu.h and error_code.h differ")
LUWU_SAME_CODE(LUWU_OK, kOk);
LUWU_SAME_CODE(LUWU_E_INVALID_ARGUMENT, kInvalidArgument);
LUWU_SAME_CODE(LUWU_E_BAD_HANDLE, kBadHandle);
LUWU_SAME_CODE(LUWU_E_BAD_STRUCT, kBadStruct);
LUWU_SAME_CODE(LUWU_E_ABI_VERSION, kAbiVersion);
LUWU_SAME_CODE(LUWU_E_UNSUPPORTED, kUnsupported);
LUWU_SAME_CODE(LUWU_E_NOT_FOUND, kNotFound);
LUWU_SAME_CODE(LUWU_E_SCHEMA_MISMATCH, kSchemaMismatch);
LUWU_SAME_CODE(LUWU_E_PERMISSION, kPermission);
LUWU_SAME_CODE(LUWU_E_STATE, kState);
LUWU_SAME_CODE(LUWU_E_LAYER_CLOSED, kLayerClosed);
LUWU_SAME_CODE(LUWU_E_STALE_VERSION, kStaleVersion);
LUWU_SAME_CODE(LUWU_E_STEP_MISMATCH, kStepMismatch);
LUWU_SAME_CODE(LUWU_E_RANK_TAKEN, kRankTaken);
LUWU_SAME_CODE(LUWU_E_RESOURCE_EXHAUSTED, kResourceExhausted);
LUWU_SAME_CODE(LUWU_E_ALREADY_EXISTS, kAlreadyExists);
LUWU_SAME_CODE(LUWU_E_DEADLINE, kDeadline);
LUWU_SAME_CODE(LUWU_E_WORKER_LOST, kWorkerLost);
LUWU_SAME_CODE(LUWU_E_UNAVAILABLE, kUnavailable);
LUWU_SAME_CODE(LUWU_E_CANCELLED, kCancelled);
LUWU_SAME_CODE(LUWU_E_FENCED, kFenced);
LUWU_SAME_CODE(LUWU_E_NODE_LOST, kNodeLost);
LUWU_SAME_CODE(LUWU_E_STALE_EPOCH, kStaleEpoch);
LUWU_SAME_CODE(LUWU_E_JOB_FAILED, kJobFailed);
LUWU_SAME_CODE(LUWU_E_ROLLED_BACK, kRolledBack);
LUWU_SAME_CODE(LUWU_E_CORRUPT, kCorrupt);
LUWU_SAME_CODE(LUWU_E_INTERNAL, kInternal);
#undef LUWU_SAME_CODE

constexpr size_t kTextBytes = 2048;
// A plain array: no destructor that could run before the thread's last call.
thread_local char t_last_error[kTextBytes] = "";

void KeepText(std::string_view message) {
  size_t bytes = std::min(message.size(), kTextBytes - 1);
  // Never cut inside a UTF-8 character.
  while (bytes > 0 && bytes < message.size() && (message[bytes] & 0xc0) == 0x80) --bytes;
  std::memcpy(t_last_error, message.data(), bytes);
  t_last_error[bytes] = '\0';
}

}  // namespace

int32_t ReportStatus(const Status& status) {
  if (status.ok()) return LUWU_OK;
  KeepText({status.message().data(), status.message().size()});
  return static_cast<int32_t>(CodeOf(status));
}

int32_t ReportFixed(ErrorCode code, const char* text) {
  KeepText(text);
  return static_cast<int32_t>(code);
}

const char* LastErrorText() { return t_last_error; }

const char* StatusName(int32_t status) {
  if (status == LUWU_IN_PROGRESS) return "in progress";
  // The names are literals, so their data is terminated.
  return ErrorCodeName(static_cast<ErrorCode>(status)).data();
}

}  // namespace luwu::client
