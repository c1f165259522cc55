#include "server/step/shard_progress.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace luwu {
namespace {

using Verdict = ShardProgress::Verdict;

Contribution At(uint32_t micro_step, uint32_t rank) { return {micro_step, rank, 0, kNowhere}; }

std::vector<std::pair<uint32_t, uint32_t>> Positions(const std::vector<Contribution>& taken) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (const Contribution& c : taken) out.emplace_back(c.micro_step, c.rank);
  return out;
}

TEST(ShardProgress, WaitsForTheRankWhoseTurnItIs) {
  ShardProgress progress(3);
  EXPECT_EQ(progress.AddPayload(At(0, 1)), Verdict::kAccepted);
  EXPECT_EQ(progress.AddPayload(At(0, 2)), Verdict::kAccepted);
  EXPECT_EQ(progress.InOrderCount(), 0u);
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kAccepted);
  EXPECT_EQ(progress.InOrderCount(), 3u);
}

TEST(ShardProgress, PassesOverARankThatIsAbsent) {
  ShardProgress progress(2);
  EXPECT_EQ(progress.AddPayload(At(0, 1)), Verdict::kAccepted);
  EXPECT_EQ(progress.Close(0, 0), Verdict::kAccepted);
  EXPECT_EQ(progress.InOrderCount(), 1u);
  EXPECT_FALSE(progress.complete());
  EXPECT_EQ(progress.Close(1, 1), Verdict::kAccepted);
  EXPECT_TRUE(progress.complete());
}

TEST(ShardProgress, CountsARepeatOnceWhetherParkedOrTaken) {
  ShardProgress progress(1);
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kAccepted);
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kDuplicate);
  std::vector<Contribution> taken;
  progress.TakeInOrder(&taken);
  EXPECT_EQ(taken.size(), 1u);
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kDuplicate);
  EXPECT_EQ(progress.Close(0, 1), Verdict::kAccepted);
  EXPECT_EQ(progress.Close(0, 1), Verdict::kDuplicate);
}

TEST(ShardProgress, RefusesWhatContradictsAClose) {
  ShardProgress progress(1);
  EXPECT_EQ(progress.AddPayload(At(2, 0)), Verdict::kAccepted);
  EXPECT_EQ(progress.Close(0, 2), Verdict::kBeyondClose);
  EXPECT_EQ(progress.Close(0, 3), Verdict::kAccepted);
  EXPECT_EQ(progress.AddPayload(At(3, 0)), Verdict::kBeyondClose);
  EXPECT_EQ(progress.Close(0, 4), Verdict::kBeyondClose);
  EXPECT_EQ(progress.Close(0, 0), Verdict::kBeyondClose);
}

TEST(ShardProgress, ACloseBeforeItsPayloadsIsNotComplete) {
  ShardProgress progress(1);
  EXPECT_EQ(progress.Close(0, 2), Verdict::kAccepted);
  EXPECT_FALSE(progress.complete());
  EXPECT_EQ(progress.AddPayload(At(1, 0)), Verdict::kAccepted);
  EXPECT_FALSE(progress.complete());
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kAccepted);
  EXPECT_TRUE(progress.complete());
}

TEST(ShardProgress, DroppingARankKeepsWhatTheSumReliesOn) {
  ShardProgress progress(2);
  std::vector<Contribution> taken;
  EXPECT_EQ(progress.Close(0, 0), Verdict::kAccepted);
  EXPECT_EQ(progress.AddPayload(At(0, 1)), Verdict::kAccepted);
  progress.TakeInOrder(&taken);  // relies on rank 0 having no micro-step 0
  std::vector<Contribution> dropped;
  progress.DropRank(0, &dropped);
  EXPECT_TRUE(progress.RankDone(0));
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kBeyondClose);
}

TEST(ShardProgress, DroppingARankForgetsACloseNothingReliesOn) {
  ShardProgress progress(2);
  std::vector<Contribution> taken;
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kAccepted);
  progress.TakeInOrder(&taken);
  EXPECT_EQ(progress.AddPayload(At(1, 0)), Verdict::kAccepted);
  EXPECT_EQ(progress.Close(0, 2), Verdict::kAccepted);
  std::vector<Contribution> dropped;
  progress.DropRank(0, &dropped);
  EXPECT_EQ(Positions(dropped), (std::vector<std::pair<uint32_t, uint32_t>>{{1, 0}}));
  EXPECT_FALSE(progress.RankDone(0));
  EXPECT_EQ(progress.AddPayload(At(0, 0)), Verdict::kDuplicate) << "what was taken stays counted";
  EXPECT_EQ(progress.AddPayload(At(1, 0)), Verdict::kAccepted);
}

// Against the rule itself: whatever arrives in whatever order, with prefixes taken at any time,
// what is taken is the (micro-step, rank) order of all contributions.
TEST(ShardProgress, TakesEverythingInOrderForAnyArrival) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t world = 1 + random() % 4;
    struct Event {
      bool close;
      uint32_t rank, value;
    };
    std::vector<Event> events;
    std::vector<std::pair<uint32_t, uint32_t>> expected;
    for (uint32_t rank = 0; rank < world; ++rank) {
      const uint32_t total = random() % 4;
      for (uint32_t m = 0; m < total; ++m) {
        events.push_back({false, rank, m});
        if (random() % 3 == 0) events.push_back({false, rank, m});  // a repeat
        expected.emplace_back(m, rank);
      }
      events.push_back({true, rank, total});
    }
    std::sort(expected.begin(), expected.end());
    std::shuffle(events.begin(), events.end(), random);
    ShardProgress progress(world);
    std::vector<Contribution> taken;
    std::set<std::pair<uint32_t, uint32_t>> seen;
    uint32_t closed = 0;
    for (const Event& event : events) {
      if (event.close) {
        EXPECT_EQ(progress.Close(event.rank, event.value), Verdict::kAccepted);
        ++closed;
      } else {
        const bool fresh = seen.emplace(event.value, event.rank).second;
        EXPECT_EQ(progress.AddPayload(At(event.value, event.rank)),
                  fresh ? Verdict::kAccepted : Verdict::kDuplicate);
      }
      EXPECT_EQ(progress.complete(), closed == world && seen.size() == expected.size());
      if (random() % 4 == 0) progress.TakeInOrder(&taken);
    }
    ASSERT_TRUE(progress.complete());
    progress.TakeAll(&taken);
    EXPECT_EQ(Positions(taken), expected);
    progress.Reset();
    EXPECT_FALSE(progress.complete());
  }
}

}  // namespace
}  // namespace luwu
