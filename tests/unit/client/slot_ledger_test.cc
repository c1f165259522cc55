#include "client/src/slot_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace luwu::client {
namespace {

// A board as a daemon would write it.
class FakeBoard {
 public:
  explicit FakeBoard(uint32_t slots) : memory_(BoardBytes(slots, 1) / 64), slots_(slots) {}
  BoardView view() const { return BoardView(std::as_bytes(std::span(memory_)), slots_, 1); }
  void Release(uint32_t slot, uint32_t count) {
    std::memcpy(
        std::as_writable_bytes(std::span(memory_)).data() + BoardReleasedOffset() + 4 * slot,
        &count, sizeof count);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> memory_;
  uint32_t slots_;
};

SlotKey Key(uint32_t shard) { return {.layer = 1, .shard = shard, .micro_step = 0, .step = 5}; }

TEST(SlotLedger, GivesEachSlotOnceUntilTheBoardReleasesIt) {
  FakeBoard board(3);
  SlotLedger ledger(3);
  std::map<uint32_t, int> taken;
  for (uint32_t i = 0; i < 3; ++i) {
    const auto slot = ledger.Take(Key(i), board.view());
    ASSERT_TRUE(slot);
    EXPECT_EQ(ledger.sequence(*slot), 0u);
    ++taken[*slot];
    ledger.Delivered(*slot);
  }
  EXPECT_EQ(taken.size(), 3u);
  EXPECT_FALSE(ledger.Take(Key(9), board.view()));
  board.Release(1, 1);
  const auto again = ledger.Take(Key(9), board.view());
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, 1u);
  EXPECT_EQ(ledger.sequence(1), 1u);
}

TEST(SlotLedger, AReleaseDoesNotFreeASlotWhoseRequestIsStillOut) {
  FakeBoard board(1);
  SlotLedger ledger(1);
  ASSERT_TRUE(ledger.Take(Key(0), board.view()));
  board.Release(0, 1);  // the daemon was faster than the completion
  EXPECT_TRUE(ledger.IsConsumed(0, board.view()));
  EXPECT_FALSE(ledger.Take(Key(1), board.view()));
  ledger.Delivered(0);
  EXPECT_TRUE(ledger.Take(Key(1), board.view()));
}

TEST(SlotLedger, SlotInDoubtIsOnlyUsedAgainForTheSameContentsAndNumber) {
  FakeBoard board(2);
  SlotLedger ledger(2);
  const auto first = ledger.Take(Key(0), board.view());
  ASSERT_TRUE(first);
  ledger.LeaveInDoubt(*first);
  const auto other = ledger.Take(Key(1), board.view());
  ASSERT_TRUE(other);
  EXPECT_NE(*other, *first);
  EXPECT_FALSE(ledger.Take(Key(2), board.view()));  // the one in doubt is not free
  const auto again = ledger.Take(Key(0), board.view());
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(ledger.sequence(*again), 0u);
}

TEST(SlotLedger, SlotGivenBackIsFreeUnderTheSameNumber) {
  FakeBoard board(1);
  SlotLedger ledger(1);
  ASSERT_TRUE(ledger.Take(Key(0), board.view()));
  EXPECT_EQ(ledger.held(), 1u);
  ledger.GiveBack(0);
  EXPECT_EQ(ledger.held(), 0u);
  ASSERT_TRUE(ledger.Take(Key(1), board.view()));
  EXPECT_EQ(ledger.sequence(0), 0u);
}

TEST(SlotLedger, OnlyDeliveredAndUnreleasedSlotsAreNotifiedAgain) {
  FakeBoard board(3);
  SlotLedger ledger(3);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(ledger.Take(Key(i), board.view()));
  ledger.Delivered(0);
  ledger.Delivered(1);
  board.Release(1, 1);
  EXPECT_TRUE(ledger.BeginRenotify(0, board.view()));
  EXPECT_FALSE(ledger.BeginRenotify(1, board.view()));  // released
  EXPECT_FALSE(ledger.BeginRenotify(2, board.view()));  // still held: its operation repeats it
  board.Release(0, 1);
  EXPECT_EQ(*ledger.Take(Key(7), board.view()), 1u);  // slot 0 is busy with its notification
  EXPECT_FALSE(ledger.Take(Key(8), board.view()));
  ledger.EndRenotify(0);
  EXPECT_EQ(*ledger.Take(Key(8), board.view()), 0u);
}

// Random life of a ledger against a plain model: never two owners of a slot, sequence numbers
// without gaps.
TEST(SlotLedger, MatchesAModelOverRandomHistories) {
  constexpr uint32_t kSlots = 5;
  std::mt19937 random(17);
  FakeBoard board(kSlots);
  SlotLedger ledger(kSlots);
  enum class State { kFree, kHeld, kDelivered };
  std::vector<State> state(kSlots, State::kFree);
  std::vector<uint32_t> uses(kSlots, 0);
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t slot = random() % kSlots;
    switch (random() % 3) {
      case 0: {
        const auto taken = ledger.Take(Key(static_cast<uint32_t>(i)), board.view());
        const bool any_free = std::count(state.begin(), state.end(), State::kFree) > 0;
        ASSERT_EQ(taken.has_value(), any_free);
        if (!taken) break;
        ASSERT_EQ(state[*taken], State::kFree);
        ASSERT_EQ(ledger.sequence(*taken), uses[*taken]);
        state[*taken] = State::kHeld;
        break;
      }
      case 1:
        if (state[slot] != State::kHeld) break;
        ledger.Delivered(slot);
        ++uses[slot];
        state[slot] = State::kDelivered;
        break;
      case 2:
        if (state[slot] != State::kDelivered) break;
        board.Release(slot, uses[slot]);
        state[slot] = State::kFree;
        break;
    }
  }
}

}  // namespace
}  // namespace luwu::client
