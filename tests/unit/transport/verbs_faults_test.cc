// Failures of NICs and networks against links in different states, over the fake fabric: every
// request completes once, each end hears of the end once, nothing is leaked, and a new link works.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>

#include "tests/fakes/fake_verbs.h"
#include "tests/unit/transport/verbs_raw_client.h"

namespace luwu::transport {
namespace {

LinkKind KindOn(FakeVerbs* fabric, uint32_t queue_pairs = 2) {
  return {"fake", Kind::kVerbs, queue_pairs, false, {}, {.use = VerbsUse::kOn, .api = fabric}};
}

struct Failure {
  std::string name;
  std::function<void(FakeVerbs&, LinkPair&)> strike;
  std::function<void(FakeVerbs&)> repair = [](FakeVerbs&) {};
};

// The first queue pair of an end; only the daemon's share their receives.
ibv_qp* SomeQp(FakeVerbs& fabric, bool dialler) {
  for (ibv_qp* qp : fabric.QueuePairs()) {
    if ((qp->srq == nullptr) == dialler) return qp;
  }
  ADD_FAILURE() << "no queue pair";
  return nullptr;
}

Failure OfSend(const std::string& name, ibv_wc_status status) {
  return {name, [status](FakeVerbs& fabric, LinkPair& pair) {
            // What is stuck stays so; the next request meets the error.
            fabric.FailNextSend(status);
            TestRequest request;
            pair.client->Notify(1, 1, &request);
            EXPECT_FALSE(request.Result().ok());
          }};
}

Failure OfQp(const std::string& name, bool dialler, ibv_event_type type) {
  return {name, [dialler, type](FakeVerbs& fabric, LinkPair&) {
            fabric.RaiseQpEvent(SomeQp(fabric, dialler), type);
          }};
}

std::vector<Failure> Failures() {
  return {
      OfSend("remote_access", IBV_WC_REM_ACCESS_ERR),
      OfSend("retries_exceeded", IBV_WC_RETRY_EXC_ERR),
      OfSend("rnr_retries_exceeded", IBV_WC_RNR_RETRY_EXC_ERR),
      OfSend("remote_operation", IBV_WC_REM_OP_ERR),
      OfSend("local_protection", IBV_WC_LOC_PROT_ERR),
      OfSend("fatal", IBV_WC_FATAL_ERR),
      OfQp("qp_fatal_at_the_client", true, IBV_EVENT_QP_FATAL),
      OfQp("qp_fatal_at_the_daemon", false, IBV_EVENT_QP_FATAL),
      OfQp("access_refused_at_the_daemon", false, IBV_EVENT_QP_ACCESS_ERR),
      OfQp("invalid_request_at_the_daemon", false, IBV_EVENT_QP_REQ_ERR),
      {"device_fatal",
       [](FakeVerbs& fabric, LinkPair&) { fabric.RaiseEvent(IBV_EVENT_DEVICE_FATAL); }},
      {"cq_overrun", [](FakeVerbs& fabric, LinkPair&) { fabric.RaiseEvent(IBV_EVENT_CQ_ERR); }},
      {"port_down", [](FakeVerbs& fabric, LinkPair&) { fabric.SetPortActive(false); },
       [](FakeVerbs& fabric) { fabric.SetPortActive(true); }},
      {"gid_change", [](FakeVerbs& fabric, LinkPair&) { fabric.ChangeGid(1, "::ffff:10.1.0.9"); }},
      {"client_closes", [](FakeVerbs&, LinkPair& pair) { pair.client->Close(); }},
      {"daemon_closes", [](FakeVerbs&, LinkPair& pair) { pair.server.endpoint->Close(); }},
      {"acceptor_ends", [](FakeVerbs&, LinkPair& pair) { pair.daemon.acceptor->Shutdown(); }},
  };
}

// What is outstanding when it strikes.
enum class State { kIdle, kReads, kNotifies };

class VerbsFaults : public ::testing::TestWithParam<std::tuple<size_t, State>> {};

INSTANTIATE_TEST_SUITE_P(Faults, VerbsFaults,
                         ::testing::Combine(::testing::Range<size_t>(0, Failures().size()),
                                            ::testing::Values(State::kIdle, State::kReads,
                                                              State::kNotifies)),
                         [](const auto& info) {
                           const State state = std::get<1>(info.param);
                           return Failures()[std::get<0>(info.param)].name + "_" +
                                  (state == State::kIdle    ? "idle"
                                   : state == State::kReads ? "reads"
                                                            : "notifies");
                         });

TEST_P(VerbsFaults, EveryRequestCompletesOnceAndANewLinkWorks) {
  const Failure failure = Failures()[std::get<0>(GetParam())];
  const State state = std::get<1>(GetParam());
  FakeVerbs fabric;
  {
    LinkPair pair(KindOn(&fabric));
    std::deque<TestRequest> requests;
    std::vector<std::byte> target(600 * kKiB);
    if (state == State::kReads) {
      // Lane 0 is stuck; what lane 1 has is free to fail.
      fabric.Blackhole(SomeQp(fabric, true));
      for (int i = 0; i < 5; ++i) {
        pair.client->Read(RemoteSpan(kWeights, 0, target.size()), target, 0,
                          &requests.emplace_back());
      }
    }
    if (state == State::kNotifies) {
      fabric.HoldReceives(true);
      for (uint32_t i = 0; i < 5; ++i) {
        pair.client->Notify(0, i, &requests.emplace_back());
        pair.server.endpoint->Notify(0, i, &requests.emplace_back());
      }
    }
    failure.strike(fabric, pair);
    for (TestRequest& request : requests) {
      const ErrorCode code = CodeOf(request.Result());
      EXPECT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kCancelled);
    }
    const bool by_client = failure.name == "client_closes";
    const bool by_daemon = failure.name == "daemon_closes";
    if (!by_client) {
      EXPECT_FALSE(pair.client_events.WaitDisconnect().ok());
    }
    if (!by_daemon) {
      EXPECT_FALSE(pair.server.events->WaitDisconnect().ok());
    }
    TestRequest late;
    pair.client->Notify(0, 0, &late);
    EXPECT_FALSE(late.Result().ok());
    for (TestRequest& request : requests) EXPECT_EQ(request.completions(), 1);
    EXPECT_EQ(pair.client_events.disconnects(), by_client ? 0 : 1);
    EXPECT_EQ(pair.server.events->disconnects(), by_daemon ? 0 : 1);
    EXPECT_EQ(fabric.open().qps, 0);
    EXPECT_EQ(fabric.open().mws, 0);
    fabric.HoldReceives(false);
    failure.repair(fabric);
    if (failure.name != "acceptor_ends") {
      TestEvents events;
      auto again = pair.daemon.Dial(pair.daemon.Options(KindOn(&fabric)), &events);
      ASSERT_TRUE(again.ok()) << ToString(again.status());
      const auto data = RandomBytes(100'000, 1);
      EXPECT_TRUE(WriteNow(**again, data, RemoteSpan(kInbox, 0, data.size())).ok());
      EXPECT_EQ(std::memcmp(pair.daemon.inbox->span().data(), data.data(), data.size()), 0);
      again->reset();
      pair.daemon.authority.WaitLink(1).endpoint.reset();
    }
  }
  EXPECT_EQ(fabric.open(), FakeVerbs::Counts());
  EXPECT_EQ(fabric.registered_bytes(), 0U);
}

TEST(VerbsRefusals, WhileThePortIsDownDiallingSaysSo) {
  FakeVerbs fabric;
  LinkPair pair(KindOn(&fabric));
  fabric.SetPortActive(false);
  EXPECT_NE(MessageOf(pair.client_events.WaitDisconnect()).find("port went down"),
            std::string::npos);
  TestEvents events;
  const auto dialled = pair.daemon.Dial(pair.daemon.Options(KindOn(&fabric)), &events);
  EXPECT_NE(MessageOf(dialled.status()).find("port 1 is not active"), std::string::npos)
      << ToString(dialled.status());
}

// A GID table that changes elsewhere is no reason to end links.
TEST(VerbsRefusals, AnotherGidMayChange) {
  FakeVerbs fabric;
  LinkPair pair(KindOn(&fabric));
  fabric.ChangeGid(0, "fe80::2");
  fabric.RaiseEvent(IBV_EVENT_PORT_ACTIVE);
  const auto data = RandomBytes(1000, 1);
  EXPECT_TRUE(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, data.size())).ok());
  EXPECT_EQ(pair.client_events.disconnects(), 0);
}

TEST(VerbsRefusals, NotificationsWaitForAPeerThatTakesNone) {
  FakeVerbs fabric;
  LinkPair pair(KindOn(&fabric, 1));
  fabric.HoldReceives(true);
  TestRequest request;
  pair.client->Notify(0, 7, &request);
  EXPECT_EQ(request.completions(), 0);
  fabric.HoldReceives(false);
  EXPECT_TRUE(request.Result().ok());
  EXPECT_EQ(pair.server.events->WaitNotifies(1), std::vector<uint32_t>{7});
}

// Receives that went with queue pairs are replaced when the shared queue runs low.
TEST(VerbsRefusals, TheSharedReceiveQueueHeals) {
  FakeVerbs fabric;
  LinkPair pair(KindOn(&fabric, 1));
  constexpr uint32_t kMany = 20'000;
  constexpr uint32_t kAtOnce = 1'000;
  for (uint32_t sent = 0; sent < kMany; sent += kAtOnce) {
    std::deque<TestRequest> requests(kAtOnce);
    for (uint32_t i = 0; i < kAtOnce; ++i) pair.client->Notify(0, sent + i, &requests[i]);
    // The peer's notification may be earlier than our completion, for which the request must live.
    for (TestRequest& request : requests) EXPECT_TRUE(request.Result().ok());
  }
  EXPECT_EQ(pair.server.events->WaitNotifies(kMany).size(), kMany);
}

TEST(VerbsRefusals, TooLittleLockedMemoryNamesTheSetting) {
  FakeVerbs fabric;
  Daemon daemon(KindOn(&fabric));
  daemon.authority.Admit(1, daemon.Terms(2));
  fabric.FailRegistrations(1 * kMiB);
  TestEvents events;
  const auto dialled = daemon.Dial(daemon.Options(KindOn(&fabric)), &events);
  ASSERT_EQ(CodeOf(dialled.status()), ErrorCode::kResourceExhausted);
  EXPECT_NE(MessageOf(dialled.status()).find("18.0 MiB"), std::string::npos)
      << ToString(dialled.status());
}

struct Choice {
  VerbsOptions options;
  FakeDeviceShape shape;
  std::string says;
};

TEST(VerbsRefusals, EachWrongSettingIsNamed) {
  FakeDeviceShape iwarp;
  iwarp.transport = IBV_TRANSPORT_IWARP;
  FakeDeviceShape down;
  down.port_active = false;
  FakeDeviceShape bare;
  bare.gids = {};
  const Choice choices[] = {
      {{.device = "mlx9"}, {}, "rdma.device is 'mlx9', but this host has only: fake0"},
      {{.port = 2}, {}, "rdma.port is 2, but the device has 1 ports"},
      {{.gid_index = 9}, {}, "rdma.gid_index is 9, but port 1 has the GIDs: 0 (fe80::1)"},
      {{.mtu = 4096}, {}, "up to its active MTU of 1024"},
      {{.use = VerbsUse::kOff}, {}, "rdma.use"},
      {{}, iwarp, "iWARP writes carry no immediate data"},
      {{}, down, "port 1 is not active"},
      {{}, bare, "give its interface an address"},
  };
  for (const Choice& choice : choices) {
    FakeVerbs fabric({choice.shape});
    VerbsOptions options = choice.options;
    options.api = &fabric;
    const auto device = VerbsDevice::Open(options);
    EXPECT_NE(MessageOf(device.status()).find(choice.says), std::string::npos)
        << MessageOf(device.status());
    EXPECT_EQ(fabric.open(), FakeVerbs::Counts());
  }
}

TEST(VerbsRefusals, ADaemonThatMustHaveRdmaDoesNotStartWithout) {
  FakeDeviceShape iwarp;
  iwarp.transport = IBV_TRANSPORT_IWARP;
  FakeVerbs fabric({iwarp});
  TestAuthority authority;
  const auto acceptor =
      MakeAcceptor({"127.0.0.1:0", "", {}, {.use = VerbsUse::kOn, .api = &fabric}}, &authority);
  EXPECT_EQ(CodeOf(acceptor.status()), ErrorCode::kUnsupported);
  EXPECT_NE(MessageOf(acceptor.status()).find("iWARP"), std::string::npos);
  const auto lenient = MakeAcceptor({"127.0.0.1:0", "", {}, {.api = &fabric}}, &authority);
  EXPECT_TRUE(lenient.ok());
  EXPECT_FALSE((*lenient)->CheckVerbs().ok());
}

TEST(VerbsOptionsText, WordsAreReadAndWrongOnesNamed) {
  const auto options = ParseVerbsOptions("device=mlx5_1 port=2, gid_index=3 mtu=1024 mode=busy");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->device, "mlx5_1");
  EXPECT_EQ(options->port, 2U);
  EXPECT_EQ(options->gid_index, 3);
  EXPECT_EQ(options->mtu, 1024U);
  EXPECT_TRUE(options->busy_poll);
  EXPECT_EQ(*ParseVerbsOptions(""), VerbsOptions());
  for (const char* wrong : {"port=", "port=x", "mtu=1000", "mode=fast", "speed=9", "device="}) {
    EXPECT_EQ(CodeOf(ParseVerbsOptions(wrong).status()), ErrorCode::kInvalidArgument) << wrong;
  }
}

// 10,000 sessions, one in ten of which vanishes at some point of its handshake or soon after.
TEST(VerbsLeaks, OpensClosesAndDeathsLeaveNothing) {
  FakeVerbs fabric;
  const LinkKind kind = KindOn(&fabric, 1);
  {
    Daemon daemon(64 * kKiB, {}, kind.verbs);
    daemon.authority.Admit(1, daemon.Terms(1));
    std::mt19937 random(3);
    for (int i = 0; i < 10'000; ++i) {
      if (i % 10 == 9) {
        VerbsRawClient client(&daemon, kind.verbs, 1);
        const uint32_t steps = random() % 4;
        if (steps > 0) client.Answer();
        if (steps > 1) client.Offer();
        if (steps > 2) client.Keys();
        client.Vanish();
        if (steps > 2) daemon.authority.WaitLink(1).endpoint.reset();
        continue;
      }
      TestEvents events;
      auto client = daemon.Dial(daemon.Options(kind), &events);
      ASSERT_TRUE(client.ok()) << ToString(client.status());
      client->reset();
      daemon.authority.WaitLink(1).endpoint.reset();
      // Regions, and the staging memory that both ends keep for their next links.
      ASSERT_LE(fabric.open().qps, 4) << "after " << i;
      ASSERT_LE(fabric.open().mrs, 16) << "after " << i;
    }
  }
  EXPECT_EQ(fabric.open(), FakeVerbs::Counts());
}

}  // namespace
}  // namespace luwu::transport
