#include "server/persist/extent_allocator.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace luwu::persist {
namespace {

constexpr uint64_t kBlock = 4096;

// Against a byte map of blocks: nothing is given out twice, and what is free is counted right.
TEST(ExtentAllocator, NeverGivesOutABlockTwice) {
  std::mt19937_64 random(3);
  ExtentAllocator allocator;
  std::vector<bool> taken;
  std::map<uint64_t, uint64_t> held;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      auto one = held.lower_bound(random() % (taken.size() * kBlock));
      if (one == held.end()) one = held.begin();
      for (uint64_t b = 0; b < one->second / kBlock; ++b) taken[one->first / kBlock + b] = false;
      allocator.Give(one->first, one->second);
      held.erase(one);
    } else {
      const uint64_t bytes = (1 + random() % 9) * kBlock;
      const uint64_t missing = allocator.Missing(bytes);
      std::optional<uint64_t> place = allocator.Take(bytes);
      if (!place) {
        allocator.Extend(allocator.size() + missing);
        taken.resize(allocator.size() / kBlock);
        place = allocator.Take(bytes);
      }
      ASSERT_TRUE(place.has_value());
      ASSERT_LE(*place + bytes, allocator.size());
      for (uint64_t b = 0; b < bytes / kBlock; ++b) {
        ASSERT_FALSE(taken[*place / kBlock + b]);
        taken[*place / kBlock + b] = true;
      }
      held[*place] = bytes;
    }
    uint64_t used = 0;
    for (const auto& [place, bytes] : held) used += bytes;
    ASSERT_EQ(allocator.free_bytes(), allocator.size() - used);
  }
}

TEST(ExtentAllocator, TwoGenerationsOfUnequalShardsStayNearTwiceTheirSize) {
  std::mt19937_64 random(5);
  std::vector<uint64_t> shards;
  uint64_t total = 0;
  for (int i = 0; i < 200; ++i) {
    shards.push_back((17 + random() % 6000) * kBlock);
    total += shards.back();
  }
  ExtentAllocator allocator;
  std::vector<uint64_t> places(shards.size(), UINT64_MAX);
  for (int step = 0; step < 60; ++step) {
    std::vector<uint64_t> next(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const size_t shard = (i + static_cast<size_t>(step) * 7) % shards.size();
      std::optional<uint64_t> place = allocator.Take(shards[shard]);
      if (!place) {
        allocator.Extend(allocator.size() + allocator.Missing(shards[shard]));
        place = allocator.Take(shards[shard]);
      }
      next[shard] = *place;
    }
    for (size_t shard = 0; shard < shards.size(); ++shard) {
      if (places[shard] != UINT64_MAX) allocator.Give(places[shard], shards[shard]);
    }
    places = next;
  }
  EXPECT_LE(allocator.size(), total * 21 / 10);
}

TEST(ExtentAllocator, RecoveryRefusesWhatOverlaps) {
  ExtentAllocator allocator;
  allocator.Extend(10 * kBlock);
  EXPECT_TRUE(allocator.Mark(2 * kBlock, 3 * kBlock));
  EXPECT_FALSE(allocator.Mark(4 * kBlock, kBlock));
  EXPECT_FALSE(allocator.Mark(kBlock, 2 * kBlock));
  EXPECT_FALSE(allocator.Mark(9 * kBlock, 2 * kBlock)) << "past the end";
  EXPECT_TRUE(allocator.Mark(5 * kBlock, 5 * kBlock));
  EXPECT_TRUE(allocator.Mark(0, 2 * kBlock));
  EXPECT_EQ(allocator.free_bytes(), 0u);
}

}  // namespace
}  // namespace luwu::persist
