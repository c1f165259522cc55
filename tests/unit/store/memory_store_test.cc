#include "server/store/memory_store.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "server/store/overflow_pool.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

struct Setting {
  explicit Setting(bool undo) {
    spec = fakes::SmallSpec(1, {fakes::Layer("a", 100), fakes::Layer("ice", 10, false)});
    spec.keep_undo_state = undo;
    map = std::make_unique<ShardMap>(spec, Placement(fakes::NodeList(1), spec), 0);
  }
  JobSpec spec;
  std::unique_ptr<ShardMap> map;
};

TEST(MemoryStore, ArraysOfAllShardsAndGenerationsAreApart) {
  const Setting setting(true);
  auto store = MemoryStore::Create(setting.spec, *setting.map);
  ASSERT_TRUE(store.ok());
  std::vector<std::pair<std::byte*, std::byte*>> ranges;
  for (uint32_t i = 0; i < setting.map->shard_count(); ++i) {
    const ShardState state = (*store)->Acquire(i);
    const uint64_t elements = setting.map->shards()[i].elements;
    const bool frozen = setting.map->shards()[i].layer == 1;
    for (const optim::StateArrays& arrays : {state.current, state.next}) {
      for (uint32_t a = 0; a < 3; ++a) {
        if (frozen && a > 0) {
          EXPECT_EQ(arrays.data[a], nullptr);
          continue;
        }
        EXPECT_EQ(reinterpret_cast<uintptr_t>(arrays.data[a]) % 64, 0u);
        EXPECT_EQ(*arrays.data[a], std::byte{0});
        ranges.emplace_back(arrays.data[a], arrays.data[a] + 4 * elements);
      }
    }
    if (frozen) {
      EXPECT_EQ(state.current, state.next);
      ranges.pop_back();
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  EXPECT_EQ(ranges.size(), 2u * 3 * 2 + 1);
}

TEST(MemoryStore, FlipExchangesTheGenerationsOfOneShard) {
  const Setting setting(true);
  auto store = MemoryStore::Create(setting.spec, *setting.map);
  const ShardState before = (*store)->Acquire(0);
  const ShardState other = (*store)->Acquire(1);
  (*store)->Flip(0);
  const ShardState after = (*store)->Acquire(0);
  EXPECT_EQ(after.current, before.next);
  EXPECT_EQ(after.next, before.current);
  EXPECT_EQ((*store)->Acquire(1).current, other.current);
}

TEST(MemoryStore, WithoutUndoStateThereIsOneGeneration) {
  const Setting setting(false);
  auto store = MemoryStore::Create(setting.spec, *setting.map);
  const ShardState before = (*store)->Acquire(0);
  EXPECT_EQ(before.current, before.next);
  (*store)->Flip(0);
  EXPECT_EQ((*store)->Acquire(0).current, before.current);
}

TEST(OverflowPool, HandsOutEveryBlockOnce) {
  Setting setting(true);
  setting.spec.overflow_bytes = 5 * 256 + 255;
  auto pool = OverflowPool::Create(setting.spec, *setting.map);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(OverflowPool::BytesFor(setting.spec, *setting.map), 5u * 256);
  std::vector<std::byte*> blocks;
  while (const auto block = pool->Take()) blocks.push_back(pool->data(*block));
  std::sort(blocks.begin(), blocks.end());
  ASSERT_EQ(blocks.size(), 5u);
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(blocks[i] - blocks[i - 1], 256);
  EXPECT_TRUE(pool->empty());
  pool->Give(3);
  EXPECT_EQ(pool->Take(), 3u);
}

TEST(OverflowPool, MayHaveNoBlockAtAll) {
  Setting setting(true);
  setting.spec.overflow_bytes = 255;
  auto pool = OverflowPool::Create(setting.spec, *setting.map);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(pool->Take(), std::nullopt);
}

}  // namespace
}  // namespace luwu
