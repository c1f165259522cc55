#include "common/wire/shard_header.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "common/base/crc32c.h"

namespace luwu {
namespace {

static_assert(std::endian::native == std::endian::little, "wire structs are stored as they lie");

uint32_t CrcOf(const ShardHeader& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(ShardHeader, header_crc32c)));
}

Status Corrupt(const ShardHeaderExpectation& expected, const std::string& what) {
  return Error(ErrorCode::kCorrupt,
               "header of layer {} shard {} version {}: {}; fetch again, and if it stays check the "
               "daemon and the link",
               expected.layer, expected.shard, expected.version, what);
}

}  // namespace

void SealShardHeader(ShardHeader* header) {
  header->magic = kShardHeaderMagic;
  std::fill(std::begin(header->reserved0), std::end(header->reserved0), uint8_t{0});
  header->reserved1 = header->reserved2 = 0;
  header->header_crc32c = CrcOf(*header);
}

Status CheckShardHeader(const ShardHeader& header, const ShardHeaderExpectation& expected) {
  if (header.magic != kShardHeaderMagic) {
    return Corrupt(expected,
                   fmt::format("magic {:#010x}, not {:#010x}", header.magic, kShardHeaderMagic));
  }
  if (header.header_crc32c != CrcOf(header)) return Corrupt(expected, "its CRC does not match");
  const auto zero = [](auto value) { return value == 0; };
  if (!std::all_of(std::begin(header.reserved0), std::end(header.reserved0), zero) ||
      header.reserved1 != 0 || header.reserved2 != 0) {
    return Corrupt(expected, "reserved fields are set");
  }
  if (header.epoch != expected.epoch) {
    return Corrupt(expected,
                   fmt::format("job epoch {:#x}, not {:#x}", header.epoch, expected.epoch));
  }
  if (header.layer != expected.layer || header.shard != expected.shard) {
    return Corrupt(expected, fmt::format("it is of layer {} shard {}", header.layer, header.shard));
  }
  if (header.dtype != static_cast<uint8_t>(expected.dtype)) {
    return Corrupt(expected,
                   fmt::format("element type {}, not {}", header.dtype, DTypeName(expected.dtype)));
  }
  if (header.payload_bytes != expected.payload_bytes) {
    return Corrupt(expected, fmt::format("{} payload bytes, not {}", header.payload_bytes,
                                         expected.payload_bytes));
  }
  if (header.version != expected.version) {
    return Error(ErrorCode::kStaleVersion,
                 "layer {} shard {}: version {} was asked for, its buffer holds version {}",
                 expected.layer, expected.shard, expected.version, header.version);
  }
  if (header.residence != expected.residence) {
    return Error(ErrorCode::kStaleVersion, "layer {} shard {}: residence {}, not {}",
                 expected.layer, expected.shard, header.residence, expected.residence);
  }
  return OkStatus();
}

}  // namespace luwu
