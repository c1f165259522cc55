// Chunks of random layers against a model that works element by element.
#include "client/src/device/chunks.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace luwu::client {
namespace {

struct Scene {
  std::vector<ShardRange> shards;
  std::vector<Segment> segments;
  uint64_t elements = 0;
};

Scene RandomScene(std::mt19937& random) {
  Scene scene;
  const uint64_t shard = 1 + random() % 40;
  scene.elements = 1 + random() % 400;
  for (uint64_t at = 0; at < scene.elements; at += shard) {
    scene.shards.push_back({at, std::min(shard, scene.elements - at)});
  }
  uint64_t address = 1 << 20;
  for (uint64_t at = random() % 3; at < scene.elements;) {
    const uint64_t count = std::min<uint64_t>(1 + random() % 90, scene.elements - at);
    const DType dtype = static_cast<DType>(1 + random() % 3);
    scene.segments.push_back({dtype, reinterpret_cast<std::byte*>(address), at, count});
    address += AlignUp(count * DTypeBytes(dtype), 8) + 8 * (random() % 2);
    at += count + random() % 4 * (random() % 30);
  }
  return scene;
}

TEST(Chunks, HoldEveryElementOnceWithoutOverlap) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const Scene scene = RandomScene(random);
    const bool converts = round % 2 == 0;
    const DType wire = static_cast<DType>(1 + random() % 3);
    const uint64_t slot_bytes = SlotBytesFor(40) + random() % 300;
    Chunks chunks(scene.shards, scene.segments, {wire, converts, slot_bytes});
    std::vector<uint64_t> address_of(scene.elements, 0);
    uint32_t next_shard = 0;
    Chunk chunk;
    while (!chunks.done()) {
      chunks.Next(&chunk);
      ASSERT_EQ(chunk.first_shard, next_shard);
      ASSERT_GT(chunk.end_shard, next_shard);
      next_shard = chunk.end_shard;
      uint64_t used = 0;
      for (const ChunkPiece& piece : chunk.pieces) {
        ASSERT_GE(piece.slot_offset, used);
        ASSERT_EQ(piece.slot_offset % sizeof(float), 0u);
        ASSERT_EQ(piece.slot_dtype, converts ? wire : piece.device_dtype);
        used = piece.slot_offset + piece.slot_bytes();
        ASSERT_LE(used, slot_bytes);
        ASSERT_GE(piece.offset, scene.shards[chunk.first_shard].first);
        const ShardRange last = scene.shards[chunk.end_shard - 1];
        ASSERT_LE(piece.offset + piece.count, last.first + last.elements);
        for (uint64_t i = 0; i < piece.count; ++i) {
          ASSERT_EQ(address_of[piece.offset + i], 0u);
          address_of[piece.offset + i] = piece.device + i * DTypeBytes(piece.device_dtype);
        }
      }
    }
    ASSERT_EQ(next_shard, scene.shards.size());
    for (const Segment& segment : scene.segments) {
      for (uint64_t i = 0; i < segment.count; ++i) {
        ASSERT_EQ(address_of[segment.offset + i],
                  reinterpret_cast<uint64_t>(segment.at(segment.offset + i)));
        address_of[segment.offset + i] = 0;
      }
    }
    for (const uint64_t left : address_of) ASSERT_EQ(left, 0u);
  }
}

// One copy for as many shards as a slot holds, since small copies keep a copy engine idle.
TEST(Chunks, JoinShardsOfOneSegment) {
  std::vector<ShardRange> shards;
  for (uint64_t i = 0; i < 8; ++i) shards.push_back({i * 100, 100});
  const std::vector<Segment> segments = {
      {DType::kBFloat16, reinterpret_cast<std::byte*>(uint64_t{1} << 20), 0, 800}};
  Chunks chunks(shards, segments, {DType::kBFloat16, false, 1000});
  Chunk chunk;
  chunks.Next(&chunk);
  ASSERT_EQ(chunk.pieces.size(), 1u);
  EXPECT_EQ(chunk.pieces[0].count, 400u);
  EXPECT_EQ(chunk.end_shard, 4u);
}

}  // namespace
}  // namespace luwu::client
