// A gradient slot: [... payload][trailer], `slot_bytes` long. The trailer is the last 64 bytes; the
// payload ends, rounded up to 64 bytes, where the trailer begins, so that payload and trailer are
// one contiguous write. Written by a worker: every field is hostile input to the daemon, which
// copies the trailer out of shared memory before looking at it. Little-endian.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/tensor/dtype.h"

namespace luwu {

inline constexpr uint32_t kSlotTrailerMagic = 0x4c53574c;  // "LWSL"
// In place of the magic while the writer of shared memory replaces the trailer.
inline constexpr uint32_t kSlotTrailerBusy = 0x4257574c;  // "LWWB"
inline constexpr uint16_t kSlotTrailerVersion = 1;
inline constexpr uint64_t kSlotTrailerBytes = 64;
inline constexpr uint32_t kAllShards = 0xffffffffu;
inline constexpr uint32_t kMicroStepMax = 1u << 20;

enum SlotFlags : uint16_t {
  kSlotClose = 1 << 0,       // last contribution of this rank to the shard in this step
  kSlotNoPayload = 1 << 1,   // with kSlotClose: "absent" when nothing was pushed before
  kSlotPayloadCrc = 1 << 2,  // payload_crc32c is set and must match
};

struct SlotTrailer {
  uint32_t magic;
  uint16_t version;
  uint16_t flags;
  uint64_t epoch;
  uint64_t step;
  uint32_t layer;
  uint32_t shard;  // within the layer, or kAllShards (only with kSlotNoPayload)
  uint32_t rank;
  uint32_t micro_step;  // 0, 1, ... within the step; one payload for each (shard, rank, micro-step)
  uint32_t slot_sequence;  // how often this slot was used before by this session
  uint32_t payload_bytes;
  uint32_t payload_crc32c;
  uint8_t dtype;  // DType
  uint8_t reserved0[3];
  uint32_t reserved1;
  uint32_t trailer_crc32c;  // over the first 60 bytes
};
static_assert(sizeof(SlotTrailer) == kSlotTrailerBytes);

// Sets magic and version, zeroes the reserved fields and signs the trailer.
void SealSlotTrailer(SlotTrailer* trailer);

// Into and out of memory that the other side may be looking at or writing (`slot_end` are the last
// 64 bytes of a slot, 8-byte aligned). Store marks the trailer as busy, writes what follows the
// magic, and the magic last; all stores before it are visible to whoever sees a new word. Load
// returns false when the trailer is busy: it is being replaced, and a doorbell of its own will
// follow. Else it is whole, or damaged for good, which CheckSlotTrailer tells.
void StoreSlotTrailer(const SlotTrailer& trailer, ByteSpan slot_end);
[[nodiscard]] bool LoadSlotTrailer(ConstByteSpan slot_end, SlotTrailer* trailer);

// Shape only: magic, version, CRC, flag combinations, reserved fields. What the numbers mean is
// for the receiver to check against its job.
Status CheckSlotTrailer(const SlotTrailer& trailer);

// Where the payload of a slot begins.
constexpr uint64_t SlotPayloadOffset(uint64_t slot_bytes, uint64_t payload_bytes) {
  return slot_bytes - kSlotTrailerBytes - ((payload_bytes + 63) & ~uint64_t{63});
}

// Smallest slot for payloads of up to `payload_bytes_max`: a multiple of 4096.
constexpr uint64_t SlotBytes(uint64_t payload_bytes_max) {
  return (((payload_bytes_max + 63) & ~uint64_t{63}) + kSlotTrailerBytes + 4095) & ~uint64_t{4095};
}

}  // namespace luwu
