// Divides a transfer between GPU memory and the shards of a layer into chunks that fit into one
// staging slot: whole shards each, in order, all shards of the layer. Says where each piece of the
// caller's memory lies in the slot, and in which dtype. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/src/device/device.h"
#include "client/src/segments.h"

namespace luwu::client {

// Part of one segment. `slot_offset` is in bytes, a multiple of 4.
struct ChunkPiece {
  DType device_dtype = DType::kUnspecified;
  cuda::Address device = 0;
  DType slot_dtype = DType::kUnspecified;
  uint64_t slot_offset = 0;
  uint64_t offset = 0;  // elements from the start of the layer
  uint64_t count = 0;

  uint64_t slot_bytes() const { return count * DTypeBytes(slot_dtype); }
};

struct Chunk {
  std::vector<ChunkPiece> pieces;  // sorted; none: the segments have nothing in these shards
  uint32_t first_shard = 0;
  uint32_t end_shard = 0;
};

struct ChunkRules {
  DType wire = DType::kUnspecified;
  bool converts_on_device = false;  // slots hold the wire's dtype; else the caller's
  uint64_t slot_bytes = 0;          // at least SlotBytesFor
};

// Bytes that a slot must have to hold any shard.
inline uint64_t SlotBytesFor(uint64_t shard_elements) { return shard_elements * sizeof(float); }

class Chunks {
 public:
  // `shards` are the layer's; `segments` are prepared (sorted) and name GPU memory. Both outlive
  // this.
  Chunks(std::span<const ShardRange> shards, std::span<const Segment> segments, ChunkRules rules)
      : shards_(shards), segments_(segments), rules_(rules) {}

  bool done() const { return next_ == shards_.size(); }
  // The next chunk, into memory that is used again. Not when done (CHECKed).
  void Next(Chunk* chunk);

 private:
  uint64_t Add(const Segment& part, uint64_t used, Chunk* chunk) const;

  const std::span<const ShardRange> shards_;
  const std::span<const Segment> segments_;
  const ChunkRules rules_;
  size_t next_ = 0;
};

// The pieces of a chunk as host memory of a slot.
void ToHostSegments(const Chunk& chunk, ByteSpan slot, std::vector<Segment>* segments);

}  // namespace luwu::client
