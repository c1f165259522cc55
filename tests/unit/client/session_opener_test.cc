// Opening a session against daemons that take their time: leases must be renewed from the first
// moment on.
#include "client/src/session_opener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "client/src/heartbeats.h"
#include "common/base/unique_fd.h"
#include "tests/unit/client/fake_control.h"

namespace luwu::client {
namespace {

JobSpec SmallJob() {
  JobSpec job;
  job.name = "small";
  job.world_size = 1;
  job.layers = {{"layer", 200, {{"layer.w", {200}}}}};
  job.optimizer.kind = OptimizerKind::kAdamW;
  job.shard_elements = 64;
  return job;
}

class SessionOpenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    first_.nodes = second_.nodes = {first_.node(), second_.node()};
    second_.self = 1;
  }
  Status Open(std::vector<std::string> endpoints = {},
              uint64_t timeout_ms = 4 * FakeControl::kPatienceMs) {
    OpenOptions options;
    options.endpoints = std::move(endpoints);
    if (options.endpoints.empty()) options.endpoints = {first_.node().control_address};
    options.job = SmallJob();
    options.timeout_ms = static_cast<uint32_t>(timeout_ms);
    return SessionOpener(std::move(options)).Open().status();
  }

  FakeControl first_{"n0"};
  FakeControl second_{"n1"};
};

TEST_F(SessionOpenerTest, HeartbeatsBeginWhileAnotherNodeIsStillOpening) {
  bool renewed = false;
  second_.on_open = [&] {
    renewed = first_.AwaitHeartbeats(3);
    return Error(ErrorCode::kState, "enough seen");
  };
  EXPECT_EQ(CodeOf(Open()), ErrorCode::kState);
  EXPECT_TRUE(renewed) << "the lease on n0 ran without a heartbeat while n1 was opening";
}

void ExpectText(const Status& status, const std::string& what) {
  EXPECT_NE(ToString(status).find(what), std::string::npos) << ToString(status);
}

// Bug: the open waited out its whole timeout for the empty node to catch up.
TEST_F(SessionOpenerTest, ANodeThatLostItsPartIsReportedBeforeASessionIsOpened) {
  first_.step = 2;
  bool opened = false;
  first_.on_open = second_.on_open = [&] {
    opened = true;
    return Error(ErrorCode::kState, "a session was opened");
  };
  const auto expect_lost = [&] {
    const Status status = Open();
    EXPECT_EQ(CodeOf(status), ErrorCode::kJobFailed) << ToString(status);
    ExpectText(status, "node n1 (" + second_.node().control_address + ") is at step 0");
    ExpectText(status, "the others at step 2");
    ExpectText(status, "delete the job and start again");
  };
  second_.loaded = false;  // another worker has just created it anew
  expect_lost();
  second_.created = true;
  expect_lost();
  EXPECT_FALSE(opened);
}

// Bug: the call of the last round failed at the deadline first and hid the reason.
TEST_F(SessionOpenerTest, NodesThatStayAtDifferentStepsAreNamedAtTheDeadline) {
  first_.step = 2;
  second_.step = 1;
  const Status status = Open({}, 1500);
  EXPECT_EQ(CodeOf(status), ErrorCode::kDeadline) << ToString(status);
  ExpectText(status, "node n1 (" + second_.node().control_address + ") is still at step 1");
}

// Bug: "Deadline Exceeded", and not why nothing could be reached.
TEST_F(SessionOpenerTest, WhyNoDaemonAnswersIsSaid) {
  constexpr uint64_t kShortMs = 1000;
  const auto expect = [&](const std::string& endpoint, const std::string& why) {
    const Status status = Open({endpoint}, kShortMs);
    EXPECT_EQ(CodeOf(status), ErrorCode::kNodeLost) << ToString(status);
    ExpectText(status, endpoint);
    ExpectText(status, why);
  };
  expect("127.0.0.1:1", "Connection refused");
  // A label that is too long to be asked for: no name server takes part.
  expect(std::string(64, 'x') + ".invalid:7070", "DNS resolution failed");
  second_.Stop();
  expect(second_.node().control_address, "Connection refused");
}

TEST_F(SessionOpenerTest, AnEndpointThatAnswersNothingSaysSoAndLeavesTimeForTheOthers) {
  UniqueFd silent(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const auto name = [&] { return static_cast<sockaddr*>(static_cast<void*>(&address)); };
  ASSERT_EQ(::bind(silent.get(), name(), length), 0);
  ASSERT_EQ(::listen(silent.get(), 16), 0);
  ASSERT_EQ(::getsockname(silent.get(), name(), &length), 0);
  const std::string endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const Status alone = Open({endpoint}, 1000);
  EXPECT_EQ(CodeOf(alone), ErrorCode::kNodeLost) << ToString(alone);
  ExpectText(alone, endpoint);
  ExpectText(alone, "neither an answer nor a refusal came");
  first_.on_open = [] { return Error(ErrorCode::kState, "found"); };
  EXPECT_EQ(CodeOf(Open({endpoint, first_.node().control_address})), ErrorCode::kState);
}

TEST_F(SessionOpenerTest, AnEndpointThatCanBeNoneIsRefusedAtOnce) {
  for (const char* endpoint : {"junk", "host:", ":7070", "host:0", "host:65536", "http://h:1"}) {
    const Status status = Open({first_.node().control_address, endpoint});
    EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument) << ToString(status);
    ExpectText(status, endpoint);
  }
}

TEST_F(SessionOpenerTest, ADaemonWithOtherLayoutRulesIsRefused) {
  first_.other_layout = 1;
  const Status status = Open();
  EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument);
  EXPECT_NE(ToString(status).find("use daemons and clients of one version"), std::string::npos)
      << ToString(status);
}

TEST_F(SessionOpenerTest, HeartbeatsGoOnForAllNodesWhileOneIsLinked) {
  bool renewed = false;
  first_.on_exchange = [&] {
    renewed = first_.AwaitHeartbeats(first_.heartbeats() + 3) &&
              second_.AwaitHeartbeats(second_.heartbeats() + 3);
    return Error(ErrorCode::kState, "enough seen");
  };
  EXPECT_EQ(CodeOf(Open()), ErrorCode::kState);
  EXPECT_TRUE(renewed);
}

TEST_F(SessionOpenerTest, AnOpenThatFailsSendsNoMoreHeartbeats) {
  second_.on_open = [&] {
    first_.AwaitHeartbeats(1);
    return Error(ErrorCode::kState, "no");
  };
  EXPECT_EQ(CodeOf(Open()), ErrorCode::kState);
  const uint64_t seen = first_.heartbeats();
  Heartbeats others;  // the time of some heartbeats passes
  NodeRpc rpc(second_.node().control_address, "n1");
  others.Add(1, &rpc, second_.heartbeat_ms);
  EXPECT_TRUE(second_.AwaitHeartbeats(second_.heartbeats() + 4));
  others.Stop();
  EXPECT_LE(first_.heartbeats(), seen + 1);  // one may have been on its way
}

}  // namespace
}  // namespace luwu::client
