// When the served copies of a job do not fit into memory, its weights region is a window: slots
// that hold the copies which are in memory at the moment, the others are on disk. The board says
// what is where, and a worker asks for what is nowhere.
//
// weights region:  ShardHeader[slots], then, page-aligned, the slots; all of one size
// board:           uint64 place[shards][2], by local shard and parity of the version
// want:            client -> daemon, a notification (kWantBit) that names shard and parity
//
// A place is overwritten without notice when the slot is given to another copy. So the reader
// compares, after the payload, the slot's header with the place: every filling of a slot has a
// residence of its own, counted up over all slots, and the header is taken away before the bytes.
#pragma once

#include <cstdint>

namespace luwu {

// A board word: 0 when the copy is not in memory.
struct WindowPlace {
  uint64_t residence = 0;  // from 1, 40 bits
  uint32_t slot = 0;       // below kWindowSlotsMax

  constexpr uint64_t word() const { return residence << 24 | slot; }
  static constexpr WindowPlace Of(uint64_t word) {
    return {word >> 24, static_cast<uint32_t>(word & 0xffffff)};
  }
};
inline constexpr uint32_t kWindowSlotsMax = 1u << 24;

// The immediate value of a client's wish; those without the bit are doorbells of gradient slots.
inline constexpr uint32_t kWantBit = 1u << 31;
constexpr uint32_t WantOf(uint32_t shard, uint64_t version) {
  return kWantBit | static_cast<uint32_t>(version % 2) << 30 | shard;
}
constexpr uint32_t WantedShard(uint32_t immediate) { return immediate & 0x3fffffff; }
constexpr uint32_t WantedParity(uint32_t immediate) { return immediate >> 30 & 1; }

}  // namespace luwu
