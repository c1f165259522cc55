// Limits of identities, with whole daemons: what is refused, what counts, and for how long.
#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/unit/service/certificates.h"
#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

constexpr char kTrainer[] = "spiffe://luwu/trainer";

class QuotaTest : public DaemonTest {
 protected:
  ~QuotaTest() override {
    daemon_.reset();
    if (!storage_.empty()) std::filesystem::remove_all(storage_);
  }
  DaemonConfig MakeConfig() override {
    DaemonConfig config = DaemonTest::MakeConfig();
    config.tls.files = certificates_.Of("daemon");
    config.storage.path = storage_;
    config.access = {
        {.identity = kTrainer, .role = Role::kTrainer, .jobs = {"*"}, .quota = quota_},
        {.identity = "spiffe://luwu/operator", .role = Role::kOperator, .jobs = {"*"}},
        {.identity = "spiffe://luwu/observer", .role = Role::kObserver, .jobs = {"*"}},
    };
    return config;
  }
  void SetUp() override {}
  // As the trainer.
  void Start(const Quota& quota) {
    quota_ = quota;
    daemon_.reset();
    StartDaemon();
    Become("trainer");
  }
  void Become(const std::string& name) {
    channel_ = rpc::MakeChannel(daemon_->config().node().control_address,
                                Certificates::Show(certificates_.Of(name)));
    jobs_ = v1::JobService::NewStub(channel_);
    sessions_ = v1::SessionService::NewStub(channel_);
    status_ = v1::StatusService::NewStub(channel_);
  }
  v1::IdentityStatus Use(const std::string& identity = kTrainer) {
    const v1::DaemonStatus status = GetStatus();
    for (const v1::IdentityStatus& each : status.identities()) {
      if (each.identity() == identity) return each;
    }
    ADD_FAILURE() << "no use of " << identity;
    return {};
  }
  // Of SmallSpec, by the daemon's whole account. A name is a part of what is kept.
  uint64_t BytesOfOneJob(const std::string& name) {
    Start({});
    const uint64_t before = GetStatus().memory_used_bytes();
    MustCreate(SmallSpec(name));
    const uint64_t bytes = GetStatus().memory_used_bytes() - before;
    EXPECT_TRUE(Delete(name, false).ok());
    return bytes;
  }
  static void ExpectRefused(const Status& status, const std::string& key) {
    EXPECT_EQ(CodeOf(status), ErrorCode::kResourceExhausted) << ToString(status);
    EXPECT_NE(MessageOf(status).find("raise " + key + " in the [[access]] entry of " + kTrainer +
                                     " on node local"),
              std::string::npos)
        << MessageOf(status);
  }

  const Certificates certificates_;
  Quota quota_;
  std::string storage_;
};

TEST_F(QuotaTest, SessionsAreCountedAndGivenBack) {
  Start({.sessions = 2});
  const uint64_t epoch = MustCreate(SmallSpec("a", 4));
  MustOpen("a", epoch, 0);
  const uint64_t second = MustOpen("a", epoch, 1);
  ExpectRefused(Open(OpenRequest("a", epoch, 2)).status(), "sessions_max");
  EXPECT_EQ(Use().sessions(), 2u);
  EXPECT_EQ(Use().sessions_max(), 2u);
  // Somebody else has limits of their own, and no part in these.
  Become("operator");
  MustOpen("a", epoch, 3);
  Become("trainer");
  EXPECT_EQ(Use().sessions(), 2u);
  EXPECT_TRUE(CloseSession(second).ok());
  EXPECT_EQ(Use().sessions(), 1u);
  MustOpen("a", epoch, 2);
  ExpectRefused(Open(OpenRequest("a", epoch, 1)).status(), "sessions_max");
}

TEST_F(QuotaTest, ARestartedWorkerTakesItsRankAtTheLimit) {
  Start({.sessions = 1});
  const uint64_t epoch = MustCreate(SmallSpec("a", 2));
  const uint64_t former = MustOpen("a", epoch, 0);
  const auto again = Open(OpenRequest("a", epoch, 0, 1));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(CodeOf(Heartbeat(former)), ErrorCode::kFenced);
  EXPECT_EQ(Use().sessions(), 1u);
}

TEST_F(QuotaTest, TheRankOfSomebodyElseCountsForWhoTakesIt) {
  Start({.sessions = 1});
  const uint64_t epoch = MustCreate(SmallSpec("a", 2));
  MustOpen("a", epoch, 0);
  Become("operator");
  const uint64_t others = MustOpen("a", epoch, 1);
  Become("trainer");
  ExpectRefused(Open(OpenRequest("a", epoch, 1, 7)).status(), "sessions_max");
  Become("operator");
  EXPECT_TRUE(Heartbeat(others).ok()) << "a refused call has ended a session";
}

TEST_F(QuotaTest, SlotsAreThoseOfAllSessions) {
  Start({.slots = 11});  // SmallSpec has 4 for each worker
  const uint64_t epoch = MustCreate(SmallSpec("a", 2));
  const uint64_t other = MustCreate(SmallSpec("b", 2));
  MustOpen("a", epoch, 0);
  MustOpen("b", other, 0);
  EXPECT_EQ(Use().slots(), 8u);
  ExpectRefused(Open(OpenRequest("b", other, 1)).status(), "slots_max");
  EXPECT_EQ(Use().slots_max(), 11u);
}

TEST_F(QuotaTest, ManyAtOnceGetNoMoreThanTheLimit) {
  Start({.sessions = 3});
  constexpr uint32_t kWorkers = 12;
  const uint64_t epoch = MustCreate(SmallSpec("a", kWorkers));
  std::atomic<uint32_t> opened = 0;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] { opened += Open(OpenRequest("a", epoch, rank)).ok(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened, 3u);
  EXPECT_EQ(Use().sessions(), 3u);
}

TEST_F(QuotaTest, MemoryIsThatOfTheJobsItCreated) {
  const uint64_t bytes = BytesOfOneJob("a");
  ASSERT_GT(bytes, 0u);
  Start({.memory_bytes = 2 * bytes - 1});
  MustCreate(SmallSpec("a"));
  EXPECT_EQ(Use().memory_bytes(), bytes);
  ExpectRefused(Create(SmallSpec("b")).status(), "memory_max");
  EXPECT_EQ(Use().jobs(), 1u);
  EXPECT_TRUE(Create(SmallSpec("a")).ok()) << "joining takes nothing";
  // Of the same name and somebody else's.
  Become("operator");
  MustCreate(SmallSpec("b"));
  Become("trainer");
  EXPECT_TRUE(Create(SmallSpec("b")).ok());
  EXPECT_EQ(Use().memory_bytes(), bytes);
  EXPECT_TRUE(Delete("a", false).ok());
  EXPECT_EQ(Use().memory_bytes(), 0u);
  MustCreate(SmallSpec("c"));
}

TEST_F(QuotaTest, WhoHasNothingLeftGetsNothing) {
  const uint64_t bytes = BytesOfOneJob("a");
  Start({.memory_bytes = bytes});
  MustCreate(SmallSpec("a"));
  ExpectRefused(Create(SmallSpec("b")).status(), "memory_max");
  Start({.memory_bytes = 1});
  ExpectRefused(Create(SmallSpec("b")).status(), "memory_max");
}

TEST_F(QuotaTest, ManyJobsAtOnceGetNoMoreThanTheLimit) {
  const uint64_t bytes = BytesOfOneJob("job-0");
  Start({.memory_bytes = 3 * bytes + bytes / 2});
  std::atomic<uint32_t> created = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { created += Create(SmallSpec("job-" + std::to_string(i))).ok(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(created, 3u);
  EXPECT_EQ(Use().memory_bytes(), 3 * bytes);
}

// With a data directory a job takes what it may of memory, and the disk for the rest.
TEST_F(QuotaTest, AJobSpillsRatherThanPassTheLimit) {
  storage_ = testing::TempDir() + "luwu-quota-" + std::to_string(::getpid());
  JobSpec spec = SmallSpec("big");
  spec.layers[0].elements = 400'000;
  spec.layers[0].tensors = {
      {.name = "w", .shape = {400'000}, .offset = 0, .group = 0, .trainable = true}};
  spec.shard_elements = 16'384;
  Start({});
  MustCreate(spec);
  const uint64_t all = Use().memory_bytes();
  EXPECT_TRUE(Delete("big", false).ok());
  Start({.memory_bytes = all - (1 << 20)});
  MustCreate(spec);
  EXPECT_LE(Use().memory_bytes(), all - (1 << 20));
  EXPECT_GT(GetStatus().jobs(0).tiers().spilled_bytes(), 0u);
}

TEST_F(QuotaTest, AfterARestartJobsCountForWhoCreatedThem) {
  storage_ = testing::TempDir() + "luwu-quota-kept-" + std::to_string(::getpid());
  Start({});
  JobSpec spec = SmallSpec("kept");
  spec.durable_every = 1;
  MustCreate(spec);
  const uint64_t bytes = Use().memory_bytes();
  Start({.memory_bytes = bytes + bytes / 2});
  EXPECT_EQ(Use().jobs(), 1u);
  EXPECT_EQ(Use().memory_bytes(), bytes);
  ExpectRefused(Create(SmallSpec("b")).status(), "memory_max");
  Become("operator");
  EXPECT_EQ(Use("spiffe://luwu/operator").jobs(), 0u);
}

TEST_F(QuotaTest, WhoMayNotSeeAllSeesItsOwnUseOnly) {
  Start({});
  const v1::DaemonStatus own = GetStatus();
  ASSERT_EQ(own.identities_size(), 1);
  EXPECT_EQ(own.identities(0).identity(), kTrainer);
  EXPECT_EQ(own.identities(0).role(), "trainer");
  Become("observer");
  EXPECT_EQ(GetStatus().identities_size(), 0);
  Become("operator");
  EXPECT_EQ(GetStatus().identities_size(), 2);
}

}  // namespace
}  // namespace luwu
