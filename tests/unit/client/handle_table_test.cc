#include "client/src/handle_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

namespace luwu::client {
namespace {

constexpr uint64_t kKind = 3;

TEST(HandleTable, FindsWhatWasAddedAndNothingElse) {
  HandleTable<int> table(kKind, 8);
  const Handle handle = *table.Add(std::make_shared<int>(7));
  ASSERT_NE(table.Find(handle), nullptr);
  EXPECT_EQ(*table.Find(handle), 7);
  EXPECT_NE(handle, 0u);
  EXPECT_EQ(table.Find(0), nullptr);
  EXPECT_EQ(table.Find(~uint64_t{0}), nullptr);
  EXPECT_EQ(table.Find(handle + 1), nullptr);                                  // another index
  EXPECT_EQ(table.Find(handle + (1ull << HandleParts::kIndexBits)), nullptr);  // another generation
}

TEST(HandleTable, EveryBitOfAHandleCounts) {
  HandleTable<int> table(kKind, 8);
  const Handle handle = *table.Add(std::make_shared<int>(7));
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_EQ(table.Find(handle ^ (uint64_t{1} << bit)), nullptr) << "bit " << bit;
  }
}

TEST(HandleTable, HandlesOfAnotherKindAreForeign) {
  HandleTable<int> sessions(1, 8);
  HandleTable<int> operations(2, 8);
  const Handle session = *sessions.Add(std::make_shared<int>(1));
  EXPECT_EQ(operations.Find(session), nullptr);
  EXPECT_EQ(operations.Remove(session), nullptr);
  EXPECT_NE(sessions.Find(session), nullptr);
}

TEST(HandleTable, StaleHandleNeverFindsTheNextObjectInItsEntry) {
  HandleTable<int> table(kKind, 1);
  std::set<Handle> stale;
  for (int i = 0; i < 1000; ++i) {
    const Handle handle = *table.Add(std::make_shared<int>(i));
    EXPECT_TRUE(stale.insert(handle).second) << "handle given out twice";
    for (const Handle old : stale) {
      if (old != handle) {
        ASSERT_EQ(table.Find(old), nullptr);
      }
    }
    ASSERT_NE(table.Remove(handle), nullptr);
    EXPECT_EQ(table.Remove(handle), nullptr);
  }
}

TEST(HandleTable, RefusesMoreThanItsMaximumAndRecovers) {
  HandleTable<int> table(kKind, 2);
  const Handle first = *table.Add(std::make_shared<int>(1));
  ASSERT_TRUE(table.Add(std::make_shared<int>(2)).ok());
  EXPECT_EQ(CodeOf(table.Add(std::make_shared<int>(3)).status()), ErrorCode::kResourceExhausted);
  table.Remove(first);
  EXPECT_TRUE(table.Add(std::make_shared<int>(3)).ok());
  EXPECT_EQ(table.All().size(), 2u);
}

TEST(HandleTable, ConcurrentRemovalGivesTheObjectToOneThread) {
  HandleTable<int> table(kKind, 4);
  for (int round = 0; round < 200; ++round) {
    const Handle handle = *table.Add(std::make_shared<int>(round));
    std::atomic<int> winners{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (!go) std::this_thread::yield();
        const auto seen = table.Find(handle);
        if (seen != nullptr) {
          EXPECT_EQ(*seen, round);  // alive though another thread removes it
        }
        if (table.Remove(handle) != nullptr) ++winners;
      });
    }
    go = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(winners, 1);
  }
}

}  // namespace
}  // namespace luwu::client
