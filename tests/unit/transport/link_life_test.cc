// One suite for every transport: how links end, are replaced, and how dialling is refused.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "common/transport/socket.h"
#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

class LinkLife : public ::testing::TestWithParam<LinkKind> {};
// The other end is another process.
class LinkDeath : public ::testing::TestWithParam<LinkKind> {};

INSTANTIATE_TEST_SUITE_P(Links, LinkLife, ::testing::ValuesIn(AllLinkKinds()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Links, LinkDeath, ::testing::ValuesIn(LinkKindsAcrossProcesses()),
                         [](const auto& info) { return info.param.name; });

// True in a thread that is inside a posting call of a Load.
thread_local bool posting = false;

// Posts all kinds of requests again and again until it is told to stop, and counts what becomes of
// them.
class Load {
 public:
  explicit Load(Endpoint* endpoint) : endpoint_(endpoint) {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  void StopAndJoin() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  // False when nothing moves.
  bool WaitCompleted(int count) {
    return WaitFor([this, count]() LUWU_REQUIRES(mutex_) { return completed_ >= count; });
  }
  // Call when the endpoint has been closed: from now on nothing may complete but requests that are
  // posted after this, which fail inside their posting calls.
  void Freeze() {
    MutexLock lock(mutex_);
    frozen_ = true;
  }

  // What holds after StopAndJoin.
  void ExpectEveryRequestCompletedOnce() {
    MutexLock lock(mutex_);
    EXPECT_EQ(posted_.load(), completed_);
    EXPECT_EQ(twice_, 0);
    EXPECT_EQ(late_, 0) << "completions after Close";
  }

 private:
  static constexpr int kThreads = 3;
  static constexpr size_t kWindow = 16;

  class Item final : public Request {
   public:
    explicit Item(Load* load) : load_(load) {}
    void Complete(const Status& status) override {
      MutexLock lock(load_->mutex_);
      if (load_->frozen_ && (!posting || status.ok())) ++load_->late_;
      if (done_) ++load_->twice_;
      done_ = true;
      ++load_->completed_;
      load_->changed_.NotifyAll();
    }
    bool done() const { return done_; }  // under the load's mutex

   private:
    Load* load_;
    bool done_ = false;
  };

  void Run(int thread) {
    const std::vector<std::byte> source(300'000);
    std::vector<std::byte> target(300'000);
    int after_the_end = 0;
    for (uint32_t i = 0; !stop_.load(); ++i) {
      if (!endpoint_->connected() && ++after_the_end > 100) break;
      const uint64_t bytes = i % 3 == 0 ? source.size() : i % 700;
      posting = true;
      Post(i, static_cast<uint32_t>(thread), Bytes(source).first(bytes),
           ByteSpan(target).first(bytes));
      posting = false;
      WaitForRoom(thread, kWindow);
    }
    WaitForRoom(thread, 0);
  }

  void Post(uint32_t number, uint32_t lane, ConstByteSpan source, ByteSpan target) {
    posted_.fetch_add(1);
    Item& item = items_[lane].emplace_back(this);
    const RemoteSpan inbox(kInbox, lane * kMiB, source.size());
    switch (number % 4) {
      case 0:
        return endpoint_->Write({&source, 1}, inbox, lane, &item);
      case 1:
        return endpoint_->Read(RemoteSpan(kWeights, 0, target.size()), target, lane, &item);
      case 2:
        return endpoint_->WriteWithNotify({&source, 1}, inbox, lane, number, &item);
      default:
        return endpoint_->Notify(lane, number, &item);
    }
  }

  void WaitForRoom(int thread, size_t left) {
    auto& items = items_[thread];
    while (items.size() > left) {
      if (!WaitFor([&] { return items.front().done(); })) return;
      items.pop_front();
    }
  }

  template <typename Condition>
  bool WaitFor(Condition condition) {
    const TimePoint deadline = Patience();
    MutexLock lock(mutex_);
    while (!condition()) {
      if (!changed_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }

  Endpoint* const endpoint_;
  std::atomic<bool> stop_{false};
  std::atomic<int> posted_{0};
  Mutex mutex_;
  CondVar changed_;
  bool frozen_ LUWU_GUARDED_BY(mutex_) = false;
  int completed_ LUWU_GUARDED_BY(mutex_) = 0;
  int late_ LUWU_GUARDED_BY(mutex_) = 0;
  int twice_ LUWU_GUARDED_BY(mutex_) = 0;
  std::deque<Item> items_[kThreads];
  std::vector<std::thread> threads_;
};

TEST_P(LinkLife, CloseUnderLoadCompletesEveryRequestOnce) {
  for (int round = 0; round < 10; ++round) {
    LinkPair pair(GetParam());
    Load load(pair.client.get());
    ASSERT_TRUE(load.WaitCompleted(60));
    pair.client->Close();
    load.Freeze();
    EXPECT_FALSE(pair.client->connected());
    pair.client->Close();  // again is harmless
    load.StopAndJoin();
    load.ExpectEveryRequestCompletedOnce();
    EXPECT_EQ(CodeOf(pair.server.events->WaitDisconnect()), ErrorCode::kUnavailable);
    EXPECT_EQ(pair.client_events.disconnects(), 0) << "an end that closes hears nothing more";
    TestRequest late;
    pair.client->Notify(0, 0, &late);
    EXPECT_EQ(CodeOf(late.Result()), ErrorCode::kCancelled);
  }
}

TEST_P(LinkLife, WhenThePeerClosesUnderLoadEveryRequestCompletesOnce) {
  for (int round = 0; round < 10; ++round) {
    LinkPair pair(GetParam());
    Load load(pair.client.get());
    ASSERT_TRUE(load.WaitCompleted(60));
    pair.server.endpoint->Close();
    const Status why = pair.client_events.WaitDisconnect();
    EXPECT_EQ(CodeOf(why), ErrorCode::kUnavailable) << ToString(why);
    load.StopAndJoin();
    load.ExpectEveryRequestCompletedOnce();
    EXPECT_EQ(pair.client_events.disconnects(), 1);
    TestRequest late;
    pair.client->Notify(0, 0, &late);
    EXPECT_EQ(CodeOf(late.Result()), ErrorCode::kUnavailable);
  }
}

TEST_P(LinkLife, DestroyingAnEndpointUnderTrafficOfThePeerIsSafe) {
  for (int round = 0; round < 10; ++round) {
    LinkPair pair(GetParam());
    Load load(pair.client.get());
    ASSERT_TRUE(load.WaitCompleted(60));
    pair.server.endpoint.reset();
    pair.server.events.reset();  // nothing may reach it any more
    EXPECT_FALSE(pair.client_events.WaitDisconnect().ok());
    load.StopAndJoin();
    load.ExpectEveryRequestCompletedOnce();
  }
}

TEST_P(LinkLife, ANewLinkOfASessionFencesTheOldOne) {
  LinkPair pair(GetParam());
  Load load(pair.client.get());
  ASSERT_TRUE(load.WaitCompleted(60));
  std::atomic<int> fenced_before_link{-1};
  std::atomic<bool> destroyed{false};
  pair.daemon.authority.set_on_link([&] {
    fenced_before_link = pair.server.events->disconnects();
    pair.server.endpoint.reset();  // as a session does that takes the new one
    destroyed = true;
  });
  TestEvents events;
  auto second = pair.daemon.Dial(pair.daemon.Options(GetParam()), &events);
  ASSERT_TRUE(second.ok()) << ToString(second.status());
  auto server = pair.daemon.authority.WaitLink(1);
  ASSERT_NE(server.endpoint, nullptr);
  EXPECT_EQ(fenced_before_link.load(), 1);
  EXPECT_TRUE(destroyed.load());
  EXPECT_FALSE(pair.client_events.WaitDisconnect().ok());
  load.StopAndJoin();
  load.ExpectEveryRequestCompletedOnce();
  const auto data = RandomBytes(100'000, 1);
  EXPECT_TRUE(WriteNow(**second, data, RemoteSpan(kInbox, 0, data.size())).ok());
  EXPECT_EQ(std::memcmp(pair.daemon.inbox->span().data(), data.data(), data.size()), 0);
  second->reset();
  server.endpoint.reset();
}

TEST_P(LinkLife, ShutdownOfTheAcceptorEndsAllLinks) {
  LinkPair pair(GetParam());
  Load load(pair.client.get());
  ASSERT_TRUE(load.WaitCompleted(60));
  pair.daemon.acceptor->Shutdown();
  EXPECT_EQ(pair.server.events->disconnects(), 1);
  EXPECT_FALSE(pair.client_events.WaitDisconnect().ok());
  load.StopAndJoin();
  load.ExpectEveryRequestCompletedOnce();
  pair.daemon.acceptor.reset();  // before the endpoints
  TestRequest late;
  pair.server.endpoint->Notify(0, 0, &late);
  EXPECT_EQ(CodeOf(late.Result()), ErrorCode::kUnavailable);
}

TEST_P(LinkLife, ASessionThatTakesNoLinkRefusesIt) {
  class Refusing final : public SessionAuthority {
   public:
    explicit Refusing(SessionTerms terms) : terms_(std::move(terms)) {}
    StatusOr<SessionTerms> Lookup(uint64_t) override { return terms_; }
    LinkEvents* OnLink(uint64_t, std::unique_ptr<Endpoint>) override { return nullptr; }

   private:
    SessionTerms terms_;
  };
  Daemon daemon(GetParam());
  Refusing authority(daemon.Terms(GetParam().connections));
  const std::string path = FreshSocketPath();
  auto acceptor = MakeAcceptor({"127.0.0.1:0", path, {}, GetParam().verbs}, &authority);
  ASSERT_TRUE(acceptor.ok());
  DialOptions options = daemon.Options(GetParam());
  options.address =
      GetParam().kind == Kind::kShm ? path : fmt::format("127.0.0.1:{}", (*acceptor)->tcp_port());
  TestEvents events;
  auto dialled = daemon.Dial(options, &events);
  EXPECT_TRUE(!dialled.ok() || !events.WaitDisconnect().ok());
}

// ---- death of a process
// --------------------------------------------------------------------------

pid_t SpawnPeer(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"/proc/self/exe"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  return pid;
}

std::string Hex(const Secret& secret) {
  std::string out;
  for (const std::byte byte : secret) out += fmt::format("{:02x}", std::to_integer<int>(byte));
  return out;
}

TEST_P(LinkDeath, AKilledClientIsNoticedWithAReason) {
  Daemon daemon(GetParam());
  daemon.authority.Admit(1, daemon.Terms(GetParam().connections));
  const DialOptions options = daemon.Options(GetParam());
  const pid_t pid = SpawnPeer({"--peer", std::string(KindName(options.kind)), options.address,
                               std::to_string(options.connections), Hex(daemon.secret)});
  ASSERT_GT(pid, 0);
  auto server = daemon.authority.WaitLink(1);
  ASSERT_NE(server.endpoint, nullptr);
  ASSERT_GE(server.events->WaitNotifies(20).size(), 20U);
  std::deque<TestRequest> requests;
  const auto data = RandomBytes(60'000, 1);
  const ConstByteSpan source = data;
  for (int i = 0; i < 50; ++i) {
    server.endpoint->Write({&source, 1}, RemoteSpan(kBoard, 0, data.size()), 0,
                           &requests.emplace_back());
  }
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  const Status why = server.events->WaitDisconnect();
  EXPECT_EQ(CodeOf(why), ErrorCode::kUnavailable);
  EXPECT_FALSE(MessageOf(why).empty());
  for (TestRequest& request : requests) {
    const Status result = request.Result();
    EXPECT_TRUE(result.ok() || CodeOf(result) == ErrorCode::kUnavailable) << ToString(result);
    EXPECT_EQ(request.completions(), 1);
  }
  EXPECT_EQ(server.events->disconnects(), 1);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  server.endpoint.reset();
}

// ---- refusals
// ------------------------------------------------------------------------------------

TEST_P(LinkLife, DialRefusesWhatWasNotAgreed) {
  LinkPair good(GetParam());  // must not be disturbed by any of this
  Daemon& daemon = good.daemon;
  daemon.authority.Admit(2, daemon.Terms(GetParam().connections));
  TestEvents events;
  DialOptions wrong_secret = daemon.Options(GetParam(), 2);
  wrong_secret.secret = RandomSecret();
  DialOptions unknown = daemon.Options(GetParam(), 3);
  for (const DialOptions& options : {wrong_secret, unknown}) {
    auto dialled = daemon.Dial(options, &events);
    ASSERT_FALSE(dialled.ok());
    EXPECT_NE(MessageOf(dialled.status()).find(std::to_string(options.session_id)),
              std::string::npos)
        << ToString(dialled.status());
  }
  DialOptions nobody = daemon.Options(GetParam(), 2);
  nobody.address = GetParam().kind == Kind::kShm ? FreshSocketPath() : "127.0.0.1:1";
  EXPECT_EQ(CodeOf(daemon.Dial(nobody, &events).status()), ErrorCode::kUnavailable);
  const auto data = RandomBytes(1000, 1);
  EXPECT_TRUE(WriteNow(*good.client, data, RemoteSpan(kInbox, 0, data.size())).ok());
  EXPECT_EQ(good.server.events->disconnects(), 0);
}

TEST_P(LinkLife, DialGivesUpAtItsDeadline) {
  // Accepts and never says a word.
  Daemon daemon(GetParam());
  const std::string path = FreshSocketPath();
  auto silent_unix = ListenUnix(path);
  auto silent_tcp = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(silent_unix.ok() && silent_tcp.ok());
  DialOptions options = daemon.Options(GetParam());
  options.address =
      GetParam().kind == Kind::kShm ? path : fmt::format("127.0.0.1:{}", silent_tcp->port);
  options.deadline = DeadlineAfter(50);
  TestEvents events;
  EXPECT_EQ(CodeOf(daemon.Dial(options, &events).status()), ErrorCode::kDeadline);
  ::unlink(path.c_str());
}

// ---- the other process
// ---------------------------------------------------------------------------

Secret FromHex(const std::string& text) {
  Secret secret;
  for (size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return secret;
}

// Dials and keeps the link busy until it is killed: --peer KIND ADDRESS CONNECTIONS SECRET.
int RunPeer(char** arguments) {
  Daemon shape(4 * kMiB, {}, {});  // only for its regions
  LinkKind kind;
  for (const Kind known : {Kind::kShm, Kind::kTcp, Kind::kVerbs}) {
    if (KindName(known) == arguments[0]) kind.kind = known;
  }
  kind.connections = static_cast<uint32_t>(std::stoi(arguments[2]));
  DialOptions options = shape.Options(kind);
  options.address = arguments[1];
  options.secret = FromHex(arguments[3]);
  TestEvents events;
  auto endpoint = shape.Dial(options, &events);
  if (!endpoint.ok()) return 1;
  const auto data = RandomBytes(200'000, 1);
  for (uint32_t i = 0; events.disconnects() == 0; ++i) {
    TestRequest request;
    const ConstByteSpan source = data;
    (*endpoint)->WriteWithNotify({&source, 1}, RemoteSpan(kInbox, 0, data.size()), i, i, &request);
    if (!request.Result().ok()) return 2;
  }
  return 0;
}

}  // namespace

int PeerMain(char** arguments) { return RunPeer(arguments); }

}  // namespace luwu::transport

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--peer") {
    return luwu::transport::PeerMain(argv + 2);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
