// The fault decorator: each kind of fault is seen, and the contract holds all the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

TEST(FaultPlanText, EveryKeyIsParsed) {
  const auto plan = ParseFaultPlan(
      "seed=7,delay=100,delay_ms=3,duplicate=50,drop=51,lose=52,disconnect_after=1000");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->seed, 7U);
  EXPECT_EQ(plan->delay_permille, 100U);
  EXPECT_EQ(plan->delay_ms_max, 3U);
  EXPECT_EQ(plan->duplicate_permille, 50U);
  EXPECT_EQ(plan->drop_permille, 51U);
  EXPECT_EQ(plan->lose_completion_permille, 52U);
  EXPECT_EQ(plan->disconnect_after_requests, 1000U);
  EXPECT_FALSE(ParseFaultPlan("")->any());
  EXPECT_TRUE(ParseFaultPlan("drop=1")->any());
}

TEST(FaultPlanText, MistakesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"drap=1", "drap"},          {"drop", "drop"},
      {"drop=", "drop"},           {"drop=x", "'x'"},
      {"drop=-1", "'-1'"},         {"drop=1001", "1001"},
      {"drop=1,drop=2", "twice"},  {"drop=1,,lose=2", "''"},
      {"delay_ms=60001", "60001"}, {"seed=99999999999999999999", "seed"},
      {"drop=5 ", "'5 '"},
  };
  for (const auto& [text, named] : cases) {
    const auto plan = ParseFaultPlan(text);
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_EQ(CodeOf(plan.status()), ErrorCode::kInvalidArgument);
    EXPECT_NE(MessageOf(plan.status()).find(named), std::string::npos) << ToString(plan.status());
  }
}

class Faults : public ::testing::TestWithParam<LinkKind> {
 protected:
  static LinkKind With(const char* plan) {
    LinkKind kind = GetParam();
    kind.wrapped = false;
    plan_ = *ParseFaultPlan(plan);
    return kind;
  }
  // Only the client's end misbehaves.
  static void Wrap(LinkPair* pair) {
    pair->client = WrapWithFaults(std::move(pair->client), plan_);
  }
  static inline FaultPlan plan_;
};

INSTANTIATE_TEST_SUITE_P(Links, Faults,
                         ::testing::Values(LinkKind{"shm", Kind::kShm, 1, false, {}},
                                           LinkKind{"tcp", Kind::kTcp, 2, false, {}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Faults, ADroppedRequestNeverHappensAndTheLinkStays) {
  LinkPair pair(With("drop=1000"));
  Wrap(&pair);
  const auto data = RandomBytes(64, 1);
  EXPECT_EQ(CodeOf(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 64))),
            ErrorCode::kUnavailable);
  EXPECT_EQ(pair.daemon.inbox->span()[0], std::byte{0});
  EXPECT_TRUE(pair.client->connected());
  EXPECT_EQ(pair.client_events.disconnects(), 0);
}

TEST_P(Faults, ALostCompletionReportsFailureOfWhatHappened) {
  LinkPair pair(With("lose=1000"));
  Wrap(&pair);
  const auto data = RandomBytes(64, 1);
  EXPECT_EQ(CodeOf(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 64))),
            ErrorCode::kUnavailable);
  EXPECT_EQ(std::memcmp(pair.daemon.inbox->span().data(), data.data(), 64), 0);
  EXPECT_TRUE(pair.client->connected());
}

TEST_P(Faults, ADuplicateIsExecutedTwiceInARowBeforeItIsReported) {
  LinkPair pair(With("duplicate=1000"));
  Wrap(&pair);
  constexpr uint32_t kCount = 50;
  std::deque<TestRequest> requests(kCount);
  std::vector<std::vector<std::byte>> sources;
  for (uint32_t i = 0; i < kCount; ++i) {
    sources.push_back(RandomBytes(64, i));
    const ConstByteSpan source = sources.back();
    pair.client->WriteWithNotify({&source, 1}, RemoteSpan(kInbox, 0, 64), 1, i, &requests[i]);
  }
  const auto heard = pair.server.events->WaitNotifies(2 * kCount);
  ASSERT_EQ(heard.size(), 2 * kCount);
  for (uint32_t i = 0; i < 2 * kCount; ++i) EXPECT_EQ(heard[i], i / 2);
  for (TestRequest& request : requests) {
    EXPECT_TRUE(request.Result().ok());
    EXPECT_EQ(request.completions(), 1);
  }
  EXPECT_EQ(std::memcmp(pair.daemon.inbox->span().data(), sources.back().data(), 64), 0);
}

TEST_P(Faults, DelaysReorderLanesButNotTheRequestsOfOne) {
  LinkPair pair(With("seed=3,delay=300,delay_ms=4"));
  Wrap(&pair);
  constexpr uint32_t kLanes = 4;
  constexpr uint32_t kPerLane = 60;
  std::deque<TestRequest> requests(kLanes * kPerLane);
  for (uint32_t i = 0; i < kPerLane; ++i) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      pair.client->Notify(lane, lane << 16 | i, &requests[i * kLanes + lane]);
    }
  }
  const auto heard = pair.server.events->WaitNotifies(requests.size());
  ASSERT_EQ(heard.size(), requests.size());
  std::vector<uint32_t> next(kLanes, 0);
  bool reordered = false;
  for (size_t at = 0; at < heard.size(); ++at) {
    const uint32_t lane = heard[at] >> 16;
    EXPECT_EQ(heard[at] & 0xffff, next[lane]++);
    if (lane != at % kLanes) reordered = true;
  }
  EXPECT_TRUE(reordered) << "nothing was delayed";
  for (TestRequest& request : requests) EXPECT_TRUE(request.Result().ok());
}

TEST_P(Faults, CloseCancelsWhatIsStillDelayed) {
  LinkPair pair(With("delay=1000,delay_ms=60000"));
  Wrap(&pair);
  std::deque<TestRequest> requests(20);
  const auto data = RandomBytes(64, 1);
  const ConstByteSpan source = data;
  for (TestRequest& request : requests) {
    pair.client->Write({&source, 1}, RemoteSpan(kInbox, 0, 64), 0, &request);
  }
  pair.client->Close();
  for (TestRequest& request : requests) {
    EXPECT_EQ(request.completions(), 1);
    EXPECT_EQ(CodeOf(request.Result()), ErrorCode::kCancelled);
  }
  EXPECT_EQ(pair.daemon.inbox->span()[0], std::byte{0});
}

TEST_P(Faults, TheLinkIsCutAfterSoManyRequests) {
  LinkPair pair(With("disconnect_after=10"));
  Wrap(&pair);
  const auto data = RandomBytes(64, 1);
  for (int i = 0; i < 9; ++i) {
    EXPECT_TRUE(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 64)).ok());
  }
  (void)WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 64));
  const Status why = pair.client_events.WaitDisconnect();
  EXPECT_NE(MessageOf(why).find("cut"), std::string::npos) << ToString(why);
  EXPECT_FALSE(pair.client->connected());
  EXPECT_FALSE(pair.server.events->WaitDisconnect().ok());
  EXPECT_EQ(CodeOf(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 64))),
            ErrorCode::kUnavailable);
  EXPECT_EQ(pair.client_events.disconnects(), 1);
}

std::vector<bool> Outcomes(const LinkKind& kind, const FaultPlan& plan) {
  LinkPair pair(kind);
  pair.client = WrapWithFaults(std::move(pair.client), plan);
  std::vector<bool> ok;
  const auto data = RandomBytes(8, 1);
  for (int i = 0; i < 1000; ++i) {
    ok.push_back(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 8)).ok());
  }
  return ok;
}

TEST_P(Faults, TheSameSeedGivesTheSameFaults) {
  const LinkKind kind = GetParam();
  const FaultPlan plan = *ParseFaultPlan("seed=5,drop=100,lose=100,duplicate=100");
  FaultPlan other = plan;
  other.seed = 6;
  const auto first = Outcomes(kind, plan);
  EXPECT_EQ(first, Outcomes(kind, plan));
  EXPECT_NE(first, Outcomes(kind, other));
  const auto failed = std::count(first.begin(), first.end(), false);
  EXPECT_GT(failed, 120);  // 190 expected
  EXPECT_LT(failed, 270);
}

}  // namespace
}  // namespace luwu::transport
