// Error codes shared by the daemon, the wire and the C ABI (client/include/luwu/luwu.h repeats the
// numbers; client/src/error.cc asserts that they agree). A range tells the caller what to rebuild.
// Codes are never renumbered.
#pragma once

#include <cstdint>
#include <string_view>

namespace luwu {

enum class ErrorCode : int32_t {
  kOk = 0,

  // -1xx: the call itself is wrong; repeating it cannot help.
  kInvalidArgument = -100,
  kBadHandle = -101,
  kBadStruct = -102,
  kAbiVersion = -103,
  kUnsupported = -104,
  kNotFound = -105,
  kSchemaMismatch = -106,
  kPermission = -107,

  // -2xx: the call does not fit the present state.
  kState = -200,
  kLayerClosed = -201,
  kStaleVersion = -202,
  kStepMismatch = -203,
  kRankTaken = -204,
  kResourceExhausted = -205,
  kAlreadyExists = -206,

  // -3xx: repeat the same call.
  kDeadline = -300,
  kWorkerLost = -301,
  kUnavailable = -302,
  kCancelled = -303,

  // -4xx: open a new session (or job) first.
  kFenced = -400,
  kNodeLost = -401,
  kStaleEpoch = -402,
  kJobFailed = -403,
  kRolledBack = -404,

  // -5xx: bytes are not what was written.
  kCorrupt = -500,

  // -6xx: a defect in LuWu.
  kInternal = -600,
};

// "worker lost", for messages and logs.
std::string_view ErrorCodeName(ErrorCode code);

}  // namespace luwu
