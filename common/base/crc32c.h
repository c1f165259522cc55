// CRC32C (Castagnoli, RFC 3720 appendix B.4) through ISA-L, which picks the fastest variant of the
// CPU at run time. The standard form: initial value and final xor are all ones.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"

namespace luwu {

// CRC of `data`, or of the concatenation when `previous` is the CRC of what came before.
uint32_t Crc32c(ConstByteSpan data, uint32_t previous = 0);

}  // namespace luwu
