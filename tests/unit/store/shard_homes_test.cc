#include "server/store/shard_homes.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "common/base/numa.h"

namespace luwu {
namespace {

constexpr uint64_t kPage = 4096;

using Parts = std::vector<ShardHomes::Part>;

// Shards 0, 2, 4 ... at home 0, the others at home 1.
ShardHomes TwoHomes() {
  const std::vector<uint32_t> cpus = AllowedCpus();
  return {{{cpus.front()}, {cpus.back()}}, {0, 1}};
}

TEST(ShardHomes, WithoutOneAllIsAtHome0AndNobodyElseTouches) {
  const ShardHomes homes;
  EXPECT_EQ(homes.homes(), 1u);
  EXPECT_EQ(homes.HomeOf(7), 0u);
  EXPECT_FALSE(homes.TouchFor({{0, 0}, {kPage, 1}}, kPage));
  EXPECT_FALSE(homes.TouchInTurns(8 * kHugePageBytes));
}

TEST(ShardHomes, RepeatOverTheShards) {
  const ShardHomes homes({{0}, {1}, {2}}, {0, 1, 2, 0});
  EXPECT_EQ(homes.homes(), 3u);
  const uint32_t expected[] = {0, 1, 2, 0, 0, 1, 2, 0};
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(homes.HomeOf(i), expected[i]);
}

TEST(ShardHomes, APageBelongsToTheShardOfItsFirstByte) {
  const ShardHomes homes = TwoHomes();
  // Shard 1 begins within page 2, shard 2 at page 5, shard 3 within the last page.
  const std::vector<ShardHomes::Start> starts = {
      {0, 0}, {9 * kPage + 8, 3}, {2 * kPage + 1, 1}, {5 * kPage, 2}};
  EXPECT_EQ(homes.PartsOf(0, starts, 10 * kPage, kPage),
            (Parts{{0, 3 * kPage}, {5 * kPage, 10 * kPage}}));
  EXPECT_EQ(homes.PartsOf(1, starts, 10 * kPage, kPage), (Parts{{3 * kPage, 5 * kPage}}));
}

TEST(ShardHomes, ShardsWithinOnePageLeaveNoneOut) {
  const ShardHomes homes = TwoHomes();
  std::vector<ShardHomes::Start> starts;
  for (uint32_t i = 0; i < 40; ++i) starts.push_back({100 + 700 * i, i});
  uint64_t covered = 0;
  std::vector<bool> pages(8, false);
  for (uint32_t home = 0; home < 2; ++home) {
    for (const ShardHomes::Part& part : homes.PartsOf(home, starts, 8 * kPage, kPage)) {
      EXPECT_EQ(part.begin % kPage, 0u);
      covered += part.end - part.begin;
      for (uint64_t at = part.begin; at < part.end; at += kPage) {
        EXPECT_FALSE(pages[at / kPage]);
        pages[at / kPage] = true;
      }
    }
  }
  EXPECT_EQ(covered, 8 * kPage);
}

bool AllPresent(ByteSpan block) {
  std::vector<unsigned char> present(block.size() / kPage);
  EXPECT_EQ(::mincore(block.data(), block.size(), present.data()), 0);
  return std::all_of(present.begin(), present.end(), [](unsigned char c) { return c & 1; });
}

TEST(ShardHomes, EveryPageIsTouchedAndTheThreadGoesOnWhereItMay) {
  const ShardHomes homes = TwoHomes();
  const std::vector<uint32_t> before = AllowedCpus();
  const std::vector<ShardHomes::Start> starts = {{0, 0}, {3 * kMiB, 1}, {5 * kMiB, 2}};
  const auto state = AllocateHuge(9 * kMiB, homes.TouchFor(starts, kHugePageBytes));
  ASSERT_TRUE(state.ok()) << ToString(state.status());
  EXPECT_TRUE(AllPresent(state->span()));
  const auto shared = CreateShared("luwu-test", 7 * kPage, homes.TouchFor({{kPage, 1}}, kPage));
  ASSERT_TRUE(shared.ok()) << ToString(shared.status());
  EXPECT_TRUE(AllPresent(shared->mapping.span()));
  const auto turns = AllocateHuge(5 * kMiB, homes.TouchInTurns(5 * kMiB));
  ASSERT_TRUE(turns.ok()) << ToString(turns.status());
  EXPECT_TRUE(AllPresent(turns->span()));
  EXPECT_EQ(AllowedCpus(), before);
}

// The node that a page lies on. move_pages without targets only looks.
int NodeOf(std::byte* page) {
  void* pages[] = {page};
  int node = -1;
  return ::syscall(SYS_move_pages, 0, 1UL, pages, nullptr, &node, 0) == 0 ? node : -1;
}

TEST(ShardHomes, PagesLieOnTheNodesOfTheirShards) {
  const auto nodes = ReadNumaNodes(kNumaRoot, AllowedCpus());
  if (!nodes.ok() || nodes->size() < 2) GTEST_SKIP() << "one NUMA node";
  // Else, after a second or so, the kernel takes pages away to see who uses them, and this thread
  // would be the one that does.
  if (!LeavePagesInPlace()) GTEST_SKIP() << "set_mempolicy is refused";
  const NumaNode& first = (*nodes)[0];
  const NumaNode& second = (*nodes)[1];
  const ShardHomes homes({first.cpus, second.cpus}, {0, 1});
  std::vector<ShardHomes::Start> starts;
  for (uint32_t i = 0; i < 8; ++i) starts.push_back({i * kHugePageBytes, i});
  const auto memory = AllocateHuge(16 * kMiB, homes.TouchFor(starts, kHugePageBytes));
  const auto shared = CreateShared("luwu-test", 16 * kMiB, homes.TouchFor(starts, kPage));
  ASSERT_TRUE(memory.ok() && shared.ok());
  for (const ByteSpan block : {memory->span(), shared->mapping.span()}) {
    SCOPED_TRACE(block.data() == memory->data() ? "private" : "shared");
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t expected = i % 2 == 0 ? first.number : second.number;
      for (const uint64_t at : {uint64_t{0}, kHugePageBytes - kPage}) {
        EXPECT_EQ(NodeOf(block.data() + i * kHugePageBytes + at), static_cast<int>(expected)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace luwu
