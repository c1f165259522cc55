// Header of one served copy of a shard in the weights region. Written by the daemon before it
// announces the version on the board; read by clients, who check it after the payload.
// Little-endian, 64 bytes.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/tensor/dtype.h"

namespace luwu {

inline constexpr uint32_t kShardHeaderMagic = 0x5348574c;  // "LWHS"

struct ShardHeader {
  uint32_t magic;
  uint8_t dtype;  // DType
  uint8_t reserved0[3];
  uint64_t epoch;
  uint64_t version;
  uint32_t layer;
  uint32_t shard;
  uint64_t payload_bytes;
  uint32_t payload_crc32c;
  uint32_t reserved1;
  uint64_t residence;  // see common/wire/window.h; 0 without a window
  uint32_t reserved2;
  uint32_t header_crc32c;  // over the first 60 bytes
};
static_assert(sizeof(ShardHeader) == 64);

// Sets magic, zeroes the reserved fields and signs the header.
void SealShardHeader(ShardHeader* header);

// What a reader expects to find; anything else is kCorrupt (or kStaleVersion when only the
// version or the residence differs), naming the shard.
struct ShardHeaderExpectation {
  uint64_t epoch = 0;
  uint64_t version = 0;
  uint32_t layer = 0;
  uint32_t shard = 0;
  DType dtype = DType::kUnspecified;
  uint64_t payload_bytes = 0;
  uint64_t residence = 0;
};
Status CheckShardHeader(const ShardHeader& header, const ShardHeaderExpectation& expected);

}  // namespace luwu
