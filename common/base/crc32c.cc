#include "common/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace luwu {

uint32_t Crc32c(ConstByteSpan data, uint32_t previous) {
  uint32_t crc = ~previous;
  // ISA-L takes an int length and, by its C signature, a non-const pointer it only reads.
  constexpr size_t kPieceBytes = size_t{1} << 30;
  while (!data.empty()) {
    const size_t piece = std::min(data.size(), kPieceBytes);
    auto* bytes = const_cast<unsigned char*>(
        static_cast<const unsigned char*>(static_cast<const void*>(data.data())));
    crc = crc32_iscsi(bytes, static_cast<int>(piece), crc);
    data = data.subspan(piece);
  }
  return ~crc;
}

}  // namespace luwu
