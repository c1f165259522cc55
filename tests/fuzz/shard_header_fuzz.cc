// The header of a served copy as a client reads it, and what the client expects: accepted means
// equal in every field. As it is, and signed, so that it comes past the checksum.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/wire/shard_header.h"

namespace luwu {
namespace {

ShardHeaderExpectation Of(const ShardHeader& header) {
  return {.epoch = header.epoch,
          .version = header.version,
          .layer = header.layer,
          .shard = header.shard,
          .dtype = static_cast<DType>(header.dtype),
          .payload_bytes = header.payload_bytes,
          .residence = header.residence};
}

bool Equal(const ShardHeaderExpectation& a, const ShardHeaderExpectation& b) {
  return a.epoch == b.epoch && a.version == b.version && a.layer == b.layer && a.shard == b.shard &&
         a.dtype == b.dtype && a.payload_bytes == b.payload_bytes && a.residence == b.residence;
}

void Try(const ShardHeader& header, const ShardHeaderExpectation& expected) {
  const Status status = CheckShardHeader(header, expected);
  if (status.ok()) {
    LUWU_CHECK(Equal(Of(header), expected), "accepted is what was asked for");
    ShardHeader again = header;
    SealShardHeader(&again);
    LUWU_CHECK(std::memcmp(&again, &header, sizeof again) == 0, "one form only of a header");
    return;
  }
  // A reader fetches again after a stale version, and gives up after anything else.
  if (CodeOf(status) != ErrorCode::kStaleVersion) return;
  ShardHeaderExpectation same = expected;
  same.version = header.version;
  same.residence = header.residence;
  LUWU_CHECK(Equal(Of(header), same), "stale means that all else is right");
}

int TryHeader(const uint8_t* data, size_t size) {
  ShardHeader header = {};
  if (size > 0) std::memcpy(&header, data, std::min(size, sizeof header));
  ShardHeader other = {};  // what is expected, from the bytes behind
  if (size > sizeof header) {
    std::memcpy(&other, data + sizeof header, std::min(size - sizeof header, sizeof other));
  }
  Try(header, Of(other));
  Try(header, Of(header));
  SealShardHeader(&header);
  Try(header, Of(other));
  LUWU_CHECK(CheckShardHeader(header, Of(header)).ok(), "what is signed is accepted");
  return 0;
}

}  // namespace
}  // namespace luwu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::TryHeader(data, size);
}
