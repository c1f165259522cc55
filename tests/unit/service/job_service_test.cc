// JobService over real gRPC: create, join, describe, delete, and everything it refuses.
#include <functional>
#include <set>
#include <thread>

#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

class JobServiceTest : public DaemonTest {};

TEST_F(JobServiceTest, TheFirstCallCreatesAndTheNextJoins) {
  const auto first = Create(SmallSpec());
  ASSERT_TRUE(first.ok()) << ToString(first.status());
  EXPECT_TRUE(first->created());
  EXPECT_FALSE(first->loaded());
  EXPECT_NE(first->epoch(), 0u);
  const auto second = Create(SmallSpec());
  ASSERT_TRUE(second.ok()) << ToString(second.status());
  EXPECT_FALSE(second->created());
  EXPECT_EQ(second->epoch(), first->epoch());
  const auto third = Create(SmallSpec(), first->epoch());
  ASSERT_TRUE(third.ok()) << ToString(third.status());
  EXPECT_EQ(third->epoch(), first->epoch());
}

TEST_F(JobServiceTest, OfManyThatCreateAtOnceExactlyOneDoes) {
  constexpr int kCallers = 16;
  std::vector<StatusOr<v1::CreateOrJoinResponse>> answers(
      kCallers, Error(ErrorCode::kInternal, "not called"));
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([this, i, &answers] { answers[i] = Create(SmallSpec()); });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> epochs;
  int created = 0;
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << ToString(answer.status());
    created += answer->created();
    epochs.insert(answer->epoch());
  }
  EXPECT_EQ(created, 1);
  EXPECT_EQ(epochs.size(), 1u);
}

TEST_F(JobServiceTest, OfManyWithDifferentSpecsOneWins) {
  constexpr int kCallers = 8;
  std::vector<StatusOr<v1::CreateOrJoinResponse>> answers(
      kCallers, Error(ErrorCode::kInternal, "not called"));
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([this, i, &answers] { answers[i] = Create(SmallSpec("job", i + 1)); });
  }
  for (std::thread& thread : threads) thread.join();
  int ok = 0;
  for (const auto& answer : answers) {
    if (answer.ok()) {
      ++ok;
    } else {
      EXPECT_EQ(CodeOf(answer.status()), ErrorCode::kSchemaMismatch) << ToString(answer.status());
    }
  }
  EXPECT_EQ(ok, 1);
}

TEST_F(JobServiceTest, DescribeGivesTheSpecAsCreated) {
  const JobSpec spec = SmallSpec();
  const uint64_t epoch = MustCreate(spec);
  v1::DescribeJobRequest request;
  request.set_job("job");
  const auto got = Call(jobs_, &v1::JobService::Stub::Describe, request);
  ASSERT_TRUE(got.ok()) << ToString(got.status());
  EXPECT_EQ(*rpc::FromProto(got->spec()), spec);
  EXPECT_EQ(got->epoch(), epoch);
}

TEST_F(JobServiceTest, ListNodesTellsTheBoundPorts) {
  const auto got = Call(jobs_, &v1::JobService::Stub::ListNodes, v1::ListNodesRequest());
  ASSERT_TRUE(got.ok()) << ToString(got.status());
  ASSERT_EQ(got->nodes_size(), 1);
  EXPECT_EQ(got->nodes(0).control_address(),
            "127.0.0.1:" + std::to_string(daemon_->control_port()));
  EXPECT_EQ(got->nodes(0).data_address(), "127.0.0.1:" + std::to_string(daemon_->data_port()));
  EXPECT_NE(daemon_->data_port(), 0);
  EXPECT_EQ(got->self(), 0u);
  EXPECT_EQ(got->nodes_fingerprint(), FingerprintOf(daemon_->config().nodes));
  EXPECT_EQ(got->boot_id().size(), 36u);
}

TEST_F(JobServiceTest, DeletionGivesTheMemoryBack) {
  const uint64_t before = GetStatus().memory_used_bytes();
  MustCreate(SmallSpec());
  EXPECT_GT(GetStatus().memory_used_bytes(), before);
  ASSERT_TRUE(Delete("job", false).ok());
  EXPECT_EQ(GetStatus().memory_used_bytes(), before);
  EXPECT_EQ(GetStatus().jobs_size(), 0);
  // The name is free again, and the job is another one.
  const auto again = Create(SmallSpec());
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->created());
}

TEST_F(JobServiceTest, AJobWithSessionsIsDeletedOnlyByForce) {
  const uint64_t epoch = MustCreate(SmallSpec());
  const uint64_t session = MustOpen("job", epoch, 0);
  EXPECT_ERROR(Delete("job", false), ErrorCode::kState, "1 open session");
  EXPECT_TRUE(Heartbeat(session).ok());
  ASSERT_TRUE(Delete("job", true).ok());
  EXPECT_ERROR(Heartbeat(session), ErrorCode::kStaleEpoch, "was deleted");
}

TEST_F(JobServiceTest, DeletionChecksNameAndEpoch) {
  const uint64_t epoch = MustCreate(SmallSpec());
  EXPECT_ERROR(Delete("other", false), ErrorCode::kNotFound, "'other'");
  EXPECT_ERROR(Delete("job", false, epoch + 1), ErrorCode::kStaleEpoch, "job");
  EXPECT_TRUE(Delete("job", false, epoch).ok());
}

TEST_F(JobServiceTest, ADifferentSpecIsRefusedNamingTheDifference) {
  MustCreate(SmallSpec());
  JobSpec other = SmallSpec();
  other.layers[0].tensors[1].name = "bias";
  EXPECT_ERROR(Create(other).status(), ErrorCode::kSchemaMismatch, "bias");
}

TEST_F(JobServiceTest, AStaleEpochIsRefused) {
  const uint64_t epoch = MustCreate(SmallSpec());
  EXPECT_ERROR(Create(SmallSpec(), epoch + 1).status(), ErrorCode::kStaleEpoch, "job");
  EXPECT_ERROR(Create(SmallSpec("new"), 5).status(), ErrorCode::kStaleEpoch, "new");
}

TEST_F(JobServiceTest, AJobThatDoesNotFitIsRefusedWithItsBytesAndLeavesNothing) {
  JobSpec big = SmallSpec("big");
  big.layers[0].elements = 100'000'000;
  // Masters, two moments, and as much again to undo a step; and two served copies.
  const uint64_t bytes_least = 100'000'000ull * (4 * 3 * 2 + 4 * 2);
  const Status status = Create(big).status();
  EXPECT_ERROR(status, ErrorCode::kResourceExhausted, "big");
  bool names_the_need = false;
  for (size_t at = 0; at < MessageOf(status).size(); ++at) {
    names_the_need |= std::strtoull(MessageOf(status).c_str() + at, nullptr, 10) >= bytes_least;
  }
  EXPECT_TRUE(names_the_need) << ToString(status);
  EXPECT_EQ(GetStatus().jobs_size(), 0);
  EXPECT_EQ(GetStatus().memory_used_bytes(), 0u);
  EXPECT_TRUE(Create(SmallSpec("big")).ok());
}

struct BadSpec {
  const char* what;
  std::function<void(v1::CreateOrJoinRequest*)> spoil;
  ErrorCode code;
  const char* text;
};

TEST_F(JobServiceTest, RefusesBadRequests) {
  using Request = v1::CreateOrJoinRequest;
  const auto layer = [](Request* r) { return r->mutable_spec()->mutable_layers(0); };
  const auto tensor = [](Request* r) {
    return r->mutable_spec()->mutable_layers(0)->mutable_tensors(0);
  };
  const BadSpec cases[] = {
      {"no spec", [](Request* r) { r->clear_spec(); }, ErrorCode::kInvalidArgument, "spec"},
      {"node list", [](Request* r) { r->set_nodes_fingerprint(1); }, ErrorCode::kSchemaMismatch,
       "node list"},
      {"no name", [](Request* r) { r->mutable_spec()->clear_name(); }, ErrorCode::kInvalidArgument,
       "name"},
      {"name with a slash", [](Request* r) { r->mutable_spec()->set_name("../x"); },
       ErrorCode::kInvalidArgument, "../x"},
      {"no ranks", [](Request* r) { r->mutable_spec()->set_world_size(0); },
       ErrorCode::kInvalidArgument, "world"},
      {"too many ranks", [](Request* r) { r->mutable_spec()->set_world_size(1u << 30); },
       ErrorCode::kInvalidArgument, "world"},
      {"no layers", [](Request* r) { r->mutable_spec()->clear_layers(); },
       ErrorCode::kInvalidArgument, "layer"},
      {"zero dimension", [&](Request* r) { tensor(r)->set_shape(1, 0); },
       ErrorCode::kInvalidArgument, "w"},
      {"overflowing shape", [&](Request* r) { tensor(r)->set_shape(1, 1ull << 62); },
       ErrorCode::kInvalidArgument, "w"},
      {"tensor beyond its layer", [&](Request* r) { tensor(r)->set_offset(90); },
       ErrorCode::kInvalidArgument, "w"},
      {"offset that overflows", [&](Request* r) { tensor(r)->set_offset(~0ull); },
       ErrorCode::kInvalidArgument, "w"},
      {"overlapping tensors", [&](Request* r) { layer(r)->mutable_tensors(1)->set_offset(63); },
       ErrorCode::kInvalidArgument, "b"},
      {"group that is not there", [&](Request* r) { tensor(r)->set_group(2); },
       ErrorCode::kInvalidArgument, "group"},
      {"same tensor name twice", [&](Request* r) { tensor(r)->set_name("b"); },
       ErrorCode::kInvalidArgument, "b"},
      {"huge layer", [&](Request* r) { layer(r)->set_elements(1ull << 63); },
       ErrorCode::kInvalidArgument, "body"},
      {"float64", [](Request* r) { r->mutable_spec()->set_served_dtype(v1::DTYPE_FLOAT64); },
       ErrorCode::kUnsupported, "float64"},
      {"no dtype", [](Request* r) { r->mutable_spec()->set_gradient_dtype(v1::DTYPE_UNSPECIFIED); },
       ErrorCode::kInvalidArgument, "dtype"},
      {"unknown dtype",
       [](Request* r) { r->mutable_spec()->set_gradient_dtype(static_cast<v1::DType>(99)); },
       ErrorCode::kUnsupported, "99"},
      {"no optimizer", [](Request* r) { r->mutable_spec()->clear_optimizer(); },
       ErrorCode::kInvalidArgument, "optimizer"},
      {"ragged shard size", [](Request* r) { r->mutable_spec()->set_shard_elements(65); },
       ErrorCode::kInvalidArgument, "shard_elements"},
      {"one slot", [](Request* r) { r->mutable_spec()->set_slots_per_worker(1); },
       ErrorCode::kInvalidArgument, "slots"},
      {"skip without undo", [](Request* r) { r->mutable_spec()->set_keep_undo_state(false); },
       ErrorCode::kInvalidArgument, "undo"},
  };
  for (const BadSpec& c : cases) {
    SCOPED_TRACE(c.what);
    v1::CreateOrJoinRequest request = CreateRequest(SmallSpec());
    c.spoil(&request);
    EXPECT_ERROR(Create(request).status(), c.code, c.text);
  }
  EXPECT_EQ(GetStatus().jobs_size(), 0);
}

TEST_F(JobServiceTest, AMessageBeyondTheLimitIsRefusedAndTheDaemonGoesOn) {
  v1::CreateOrJoinRequest request = CreateRequest(SmallSpec());
  request.mutable_spec()->set_name(std::string(rpc::kMessageBytesMax + 1, 'x'));
  EXPECT_EQ(CodeOf(Create(request).status()), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(Create(SmallSpec()).ok());
}

}  // namespace
}  // namespace luwu
