// Sizes and durations as people write them in a configuration or on a command line. Pure
// functions, callable from anywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace luwu {

// "4096", "4096 B", "64KiB", "512 MiB", "1.5GiB", "2TiB". kInvalidArgument says what is allowed.
StatusOr<uint64_t> ParseBytes(std::string_view text);

// In milliseconds: "250", "250ms", "15 s", "0.5s", "2min", "1h".
StatusOr<uint64_t> ParseDurationMs(std::string_view text);

}  // namespace luwu
