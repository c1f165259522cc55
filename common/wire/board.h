// The board: memory of a client that one daemon writes, one per (session, node). Every word that
// moves is an aligned 32- or 64-bit little-endian integer; all but places only grow within a
// session.
//
//   0    BoardHeader (320 bytes)
//   320  uint32 released[slots]     times the daemon has given slot i back (the credit)
//   ...  uint64 published[shards]   newest readable version of local shard i, plus one; 0: none.
//                                   aligned to 64
//   ...  uint64 place[shards][2]      only of a job with a window: see common/wire/window.h
//
// A slot is free when released[i] equals the times the client has used it. A version v is readable
// while published is v + 1 or v + 2: its bytes are overwritten by v + 2 only.
#pragma once

#include <cstdint>

namespace luwu {

inline constexpr uint32_t kBoardMagic = 0x4442574c;  // "LWBD"

struct BoardHeader {
  uint32_t magic;
  uint32_t fault_code;  // minus an ErrorCode; 0: none. Set once; the session is dead.
  uint64_t epoch;
  uint64_t current_step;  // the step that is open, that is, how many steps have committed
  uint64_t beat;          // grows with every write of the board
  uint8_t reserved[32];
  char fault_text[256];  // NUL-terminated
};
static_assert(sizeof(BoardHeader) == 320);

constexpr uint64_t BoardReleasedOffset() { return sizeof(BoardHeader); }
constexpr uint64_t BoardPublishedOffset(uint32_t slots) {
  return (BoardReleasedOffset() + uint64_t{4} * slots + 63) & ~uint64_t{63};
}
constexpr uint64_t BoardPlacesOffset(uint32_t slots, uint64_t shards) {
  return BoardPublishedOffset(slots) + 8 * shards;
}
constexpr uint64_t BoardBytes(uint32_t slots, uint64_t shards, bool window = false) {
  return (BoardPlacesOffset(slots, shards) + (window ? 16 * shards : 0) + 4095) & ~uint64_t{4095};
}

// Immediate values of the daemon's write-with-notify to a client.
inline constexpr uint32_t kNotifyBoard = 0;  // the board changed

// Region ids within a session's connection.
inline constexpr uint32_t kRegionWeights = 1;  // daemon's; client may read
inline constexpr uint32_t kRegionInbox = 2;    // daemon's; client may write
inline constexpr uint32_t kRegionBoard = 3;    // client's; daemon may write

}  // namespace luwu
