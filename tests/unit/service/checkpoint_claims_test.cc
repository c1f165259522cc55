// Which commands on checkpoints exclude each other, and how long one waits for another.
#include "server/service/checkpoint_claims.h"

#include <atomic>
#include <future>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace luwu {
namespace {

using Work = CheckpointClaims::Work;

// Of a caller whose time is over: the answer is that of now.
ErrorCode TryNow(CheckpointClaims* claims, const std::string& job, const std::string& name,
                 Work work) {
  return CodeOf(claims->Take(job, name, work, Caller(DeadlineAfter(0))).status());
}

TEST(CheckpointClaims, OneThingIsDoneWithACheckpointAtATime) {
  CheckpointClaims claims;
  for (const Work held : {Work::kMake, Work::kDrop, Work::kRestore}) {
    StatusOr<CheckpointClaims::Claim> taken =
        claims.Take("gpt", "a", held, Caller(DeadlineAfter(0)));
    ASSERT_TRUE(taken.ok());
    std::optional<CheckpointClaims::Claim> claim(*std::move(taken));
    for (const Work work : {Work::kMake, Work::kDrop, Work::kRestore}) {
      EXPECT_EQ(TryNow(&claims, "gpt", "a", work), ErrorCode::kState);
      EXPECT_EQ(TryNow(&claims, "bert", "a", work), ErrorCode::kOk);
    }
    EXPECT_EQ(TryNow(&claims, "gpt", "b", Work::kDrop), ErrorCode::kOk);
    EXPECT_EQ(TryNow(&claims, "gpt", "b", Work::kRestore), ErrorCode::kOk);
    EXPECT_EQ(TryNow(&claims, "gpt", "b", Work::kMake),
              held == Work::kMake ? ErrorCode::kState : ErrorCode::kOk);
    claim.reset();
    EXPECT_EQ(TryNow(&claims, "gpt", "a", held), ErrorCode::kOk);
  }
}

TEST(CheckpointClaims, TheNextOneGetsItsTurn) {
  CheckpointClaims claims;
  StatusOr<CheckpointClaims::Claim> taken =
      claims.Take("gpt", "a", Work::kMake, Caller(DeadlineAfter(60'000)));
  ASSERT_TRUE(taken.ok());
  std::optional<CheckpointClaims::Claim> first(*std::move(taken));
  std::promise<void> looked;
  std::atomic<bool> told = false;
  auto second = std::async(std::launch::async, [&] {
    const Caller caller(DeadlineAfter(60'000), [&] {
      if (!told.exchange(true)) looked.set_value();
      return false;
    });
    return CodeOf(claims.Take("gpt", "b", Work::kMake, caller).status());
  });
  looked.get_future().wait();
  first.reset();
  EXPECT_EQ(second.get(), ErrorCode::kOk);
}

TEST(CheckpointClaims, WhoIsGoneWaitsNoLonger) {
  CheckpointClaims claims;
  const auto first = claims.Take("gpt", "a", Work::kMake, Caller(DeadlineAfter(60'000)));
  ASSERT_TRUE(first.ok());
  int looks = 0;
  const Caller leaves(DeadlineAfter(60'000), [&] { return ++looks > 1; });
  EXPECT_EQ(CodeOf(claims.Take("gpt", "a", Work::kDrop, leaves).status()), ErrorCode::kState);
  EXPECT_EQ(looks, 2);
}

}  // namespace
}  // namespace luwu
