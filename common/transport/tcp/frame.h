// The messages of a tcp link after the handshake: a 40-byte little-endian header, then `bytes` of
// payload for kWrite, kReadReply and kError. Every field of a received header is hostile.
//
//   kRead       asks for [offset, +bytes) of `region`; replies come in the order of the reads
//   kReadReply  a piece of the read `id`; offset counts from the start of the read
//   kWrite      a piece of the write `id`, to `offset` of `region`
//   kNotify     a write of nothing, with `immediate`
//   kAck        all writes and notifies up to `id` are in memory
//   kError      the sender ends the link; the payload says why
//
// Ids count from 1 per connection and direction: one sequence for reads, one for writes and
// notifies. Requests longer than a piece are cut, so that replies, acknowledgements and other
// requests get between the pieces; kFlagLast marks the end of each read reply and write.
#pragma once

#include <cstdint>

namespace luwu::transport {

inline constexpr uint32_t kFrameMagic = 0x4654574c;  // "LWTF"

enum class Op : uint8_t { kRead = 1, kReadReply, kWrite, kNotify, kAck, kError };

inline constexpr uint8_t kFlagLast = 1;
inline constexpr uint8_t kFlagNotify = 2;  // with kFlagLast on a kWrite: deliver `immediate`

struct FrameHeader {
  uint32_t magic;
  uint8_t op;
  uint8_t flags;
  uint16_t reserved;  // 0
  uint32_t region;
  uint32_t immediate;
  uint64_t offset;
  uint64_t bytes;
  uint64_t id;
};
static_assert(sizeof(FrameHeader) == 40);

// Payload of one frame.
inline constexpr uint64_t kPieceBytesMax = 1024 * 1024;
inline constexpr uint64_t kErrorTextMax = 256;
// Reads of one connection that may wait for their replies; more is a violation.
inline constexpr uint32_t kReadsInFlightMax = 256;

}  // namespace luwu::transport
