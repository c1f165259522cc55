// The calling thread's last error, and the way from a Status to a luwu_status number. Used by the C
// ABI files, any thread; never fails and never allocates.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace luwu::client {

// Keeps the text for luwu_last_error() and returns the number (0 for OK, which keeps nothing).
int32_t ReportStatus(const Status& status);

// The same for an error whose making must not allocate.
int32_t ReportFixed(ErrorCode code, const char* text);

// Of the calling thread; "" before its first failure. Cut at about 2000 bytes.
const char* LastErrorText();

// Static text for a luwu_status number.
const char* StatusName(int32_t status);

}  // namespace luwu::client
