#include "client/src/device/chunks.h"

#include <bit>

#include "common/base/check.h"

namespace luwu::client {

// Puts the part of a segment that lies in one shard behind what is there. Returns the bytes used.
uint64_t Chunks::Add(const Segment& part, uint64_t used, Chunk* chunk) const {
  const DType slot_dtype = rules_.converts_on_device ? rules_.wire : part.dtype;
  const uint64_t bytes = part.count * DTypeBytes(slot_dtype);
  const auto address = std::bit_cast<uint64_t>(part.data);
  if (!chunk->pieces.empty()) {  // the same segment goes on in the next shard
    ChunkPiece& last = chunk->pieces.back();
    const bool goes_on = last.offset + last.count == part.offset &&
                         last.device_dtype == part.dtype &&
                         last.device + last.count * DTypeBytes(part.dtype) == address &&
                         last.slot_offset + last.slot_bytes() == used;
    if (goes_on) {
      last.count += part.count;
      return used + bytes;
    }
  }
  used = AlignUp(used, sizeof(float));
  chunk->pieces.push_back({part.dtype, address, slot_dtype, used, part.offset, part.count});
  return used + bytes;
}

void Chunks::Next(Chunk* chunk) {
  LUWU_CHECK(!done(), "the caller asks done() first");
  chunk->pieces.clear();
  chunk->first_shard = static_cast<uint32_t>(next_);
  uint64_t used = 0;
  while (next_ < shards_.size()) {
    const ShardRange shard = shards_[next_];
    const std::span<const Segment> inside = Intersecting(segments_, shard);
    // At most four bytes an element, padding included; the last chunk's slack costs nothing.
    uint64_t elements = 0;
    for (const Segment& segment : inside) elements += Clip(segment, shard).count;
    const bool fits = AlignUp(used, sizeof(float)) + SlotBytesFor(elements) <= rules_.slot_bytes;
    if (!fits && !chunk->pieces.empty()) break;
    LUWU_CHECK(fits, "a slot holds any shard");
    for (const Segment& segment : inside) used = Add(Clip(segment, shard), used, chunk);
    ++next_;
  }
  chunk->end_shard = static_cast<uint32_t>(next_);
}

void ToHostSegments(const Chunk& chunk, ByteSpan slot, std::vector<Segment>* segments) {
  segments->clear();
  for (const ChunkPiece& piece : chunk.pieces) {
    std::byte* const data = slot.subspan(piece.slot_offset, piece.slot_bytes()).data();
    segments->push_back({piece.slot_dtype, data, piece.offset, piece.count});
  }
}

}  // namespace luwu::client
