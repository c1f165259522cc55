// StepService over real gRPC: begin and commit, waiting, cancellation, and everything it refuses.
// Jobs whose layers are all frozen need no data plane: their steps end when every rank has begun.
#include <cmath>
#include <future>
#include <limits>

#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

class StepServiceTest : public DaemonTest {
 protected:
  // Two sessions of a frozen job of two ranks, loaded.
  void OpenPair() {
    const uint64_t epoch = MustCreate(FrozenSpec("job", 2));
    first_ = MustOpen("job", epoch, 0);
    second_ = MustOpen("job", epoch, 1);
    ASSERT_TRUE(FinishLoad(first_, true).ok());
  }
  uint64_t OpenLoaded(const JobSpec& spec) {
    const uint64_t session = MustOpen(spec.name, MustCreate(spec), 0);
    EXPECT_TRUE(FinishLoad(session, true).ok());
    return session;
  }

  uint64_t first_ = 0;
  uint64_t second_ = 0;
};

TEST_F(StepServiceTest, AStepEndsAppliedForEveryRank) {
  OpenPair();
  for (uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(Begin(first_, step).ok());
    std::future<StatusOr<v1::CommitResponse>> waiting =
        std::async(std::launch::async, [&] { return Commit(first_, step, 20'000); });
    ASSERT_TRUE(Begin(second_, step).ok());
    const auto second = Commit(second_, step, 20'000);
    ASSERT_TRUE(second.ok()) << ToString(second.status());
    const auto first = waiting.get();
    ASSERT_TRUE(first.ok()) << ToString(first.status());
    for (const auto& answer : {*first, *second}) {
      EXPECT_EQ(answer.outcome(), v1::OUTCOME_APPLIED);
      EXPECT_EQ(answer.durability(), v1::DURABILITY_MEMORY);
      EXPECT_EQ(answer.culprit(), "");
    }
  }
  EXPECT_EQ(GetStatus().jobs(0).current_step(), 3u);
  EXPECT_EQ(GetStatus().jobs(0).last_outcome(), "applied");
}

TEST_F(StepServiceTest, ACommitMayBeRepeated) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  ASSERT_TRUE(Begin(second_, 0).ok());
  for (int i = 0; i < 3; ++i) {
    const auto answer = Commit(first_, 0, 20'000);
    ASSERT_TRUE(answer.ok()) << ToString(answer.status());
    EXPECT_EQ(answer->outcome(), v1::OUTCOME_APPLIED);
  }
}

TEST_F(StepServiceTest, ACommitThatCannotEndNamesWhoIsWaitedFor) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  EXPECT_ERROR(Commit(first_, 0, 100).status(), ErrorCode::kDeadline, "rank 1");
  EXPECT_ERROR(Commit(first_, 0, 0).status(), ErrorCode::kDeadline, "rank 1");
}

TEST_F(StepServiceTest, TheDeadlineOfTheCallBoundsTheWait) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  grpc::ClientContext context;
  rpc::SetTimeout(&context, 200);
  v1::CommitRequest request;
  request.set_session_id(first_);
  request.set_timeout_ms(1ull << 62);  // does not overflow
  v1::CommitResponse response;
  const grpc::Status status = steps_->Commit(&context, request, &response);
  EXPECT_EQ(CodeOf(rpc::FromGrpc(status, context)), ErrorCode::kDeadline);
}

TEST_F(StepServiceTest, AWaiterThatGoesAwayDisturbsNobody) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext context;
    v1::CommitRequest request;
    request.set_session_id(first_);
    request.set_timeout_ms(20'000);
    v1::CommitResponse response;
    std::promise<grpc::Status> done;
    steps_->async()->Commit(&context, &request, &response,
                            [&](grpc::Status status) { done.set_value(std::move(status)); });
    context.TryCancel();
    EXPECT_EQ(done.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(Begin(second_, 0).ok());
  EXPECT_TRUE(Commit(first_, 0, 20'000).ok());
  EXPECT_TRUE(Commit(second_, 0, 20'000).ok());
}

TEST_F(StepServiceTest, ManyCommitsWaitAtOnceWithoutThreadsOfTheirOwn) {
  constexpr uint32_t kRanks = 64;
  const uint64_t epoch = MustCreate(FrozenSpec("wide", kRanks));
  std::vector<uint64_t> sessions;
  for (uint32_t rank = 0; rank < kRanks; ++rank) sessions.push_back(MustOpen("wide", epoch, rank));
  ASSERT_TRUE(FinishLoad(sessions[0], true).ok());
  struct Waiter {
    grpc::ClientContext context;
    v1::CommitRequest request;
    v1::CommitResponse response;
    std::promise<grpc::Status> done;
  };
  std::vector<std::unique_ptr<Waiter>> waiters;
  for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) {
    ASSERT_TRUE(Begin(sessions[rank], 0).ok());
    waiters.push_back(std::make_unique<Waiter>());
    Waiter& waiter = *waiters.back();
    waiter.request.set_session_id(sessions[rank]);
    waiter.request.set_timeout_ms(20'000);
    steps_->async()->Commit(&waiter.context, &waiter.request, &waiter.response,
                            [&waiter](grpc::Status status) { waiter.done.set_value(status); });
  }
  // While they wait, everything else is answered.
  EXPECT_TRUE(Heartbeat(sessions[kRanks - 1]).ok());
  ASSERT_TRUE(Begin(sessions[kRanks - 1], 0).ok());
  for (const auto& waiter : waiters) {
    const grpc::Status status = waiter->done.get_future().get();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(waiter->response.outcome(), v1::OUTCOME_APPLIED);
  }
}

TEST_F(StepServiceTest, StepsComeInOrder) {
  OpenPair();
  EXPECT_ERROR(Begin(first_, 1), ErrorCode::kStepMismatch, "step 0");
  EXPECT_ERROR(Begin(first_, ~0ull), ErrorCode::kStepMismatch, "step 0");
  EXPECT_ERROR(Commit(first_, 1, 1000).status(), ErrorCode::kStepMismatch, "step 0");
  ASSERT_TRUE(Begin(first_, 0).ok());
  ASSERT_TRUE(Begin(first_, 0).ok());  // a repetition is harmless
}

TEST_F(StepServiceTest, NoStepBeginsBeforeTheWeightsAreLoaded) {
  const uint64_t session = MustOpen("job", MustCreate(SmallSpec()), 0);
  EXPECT_ERROR(Begin(session, 0), ErrorCode::kState, "loaded");
}

TEST_F(StepServiceTest, NothingIsLoadedAfterAStepHasBegun) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  EXPECT_ERROR(Load({Piece(first_, 0, 0, 0, {1})}).status(), ErrorCode::kState, "");
}

TEST_F(StepServiceTest, RanksMustAgreeOnHyperParameters) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  v1::HyperParameters other = AdamWGroup();
  other.set_lr(2e-3);
  const Status refused = Begin(second_, 0, {AdamWGroup(), other});
  EXPECT_ERROR(refused, ErrorCode::kInvalidArgument, "rank 0");
  EXPECT_ERROR(refused, ErrorCode::kInvalidArgument, "rank 1");
  EXPECT_TRUE(Begin(second_, 0).ok());
}

TEST_F(StepServiceTest, RefusesBadHyperParameters) {
  const uint64_t session = OpenLoaded(SmallSpec());
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  const auto with = [](void (v1::HyperParameters::*set)(double), double value) {
    v1::HyperParameters group = AdamWGroup();
    (group.*set)(value);
    return group;
  };
  const std::vector<v1::HyperParameters> bad = {
      with(&v1::HyperParameters::set_lr, nan),
      with(&v1::HyperParameters::set_lr, -1e-3),
      with(&v1::HyperParameters::set_lr, infinity),
      with(&v1::HyperParameters::set_weight_decay, -0.1),
      with(&v1::HyperParameters::set_weight_decay, nan),
      with(&v1::HyperParameters::set_beta1, 1.0),
      with(&v1::HyperParameters::set_beta2, -0.1),
      with(&v1::HyperParameters::set_beta2, nan),
      with(&v1::HyperParameters::set_eps, -1.0),
      with(&v1::HyperParameters::set_eps, infinity),
      with(&v1::HyperParameters::set_max_norm, -1.0),
      with(&v1::HyperParameters::set_max_norm, 1.0),  // the job clips nothing
  };
  for (const v1::HyperParameters& group : bad) {
    SCOPED_TRACE(group.ShortDebugString());
    EXPECT_ERROR(Begin(session, 0, {AdamWGroup(), group}), ErrorCode::kInvalidArgument, "group 1");
  }
  EXPECT_ERROR(Begin(session, 0, {AdamWGroup()}), ErrorCode::kInvalidArgument, "2");
  EXPECT_ERROR(Begin(session, 0, {}), ErrorCode::kInvalidArgument, "2");
  EXPECT_ERROR(Begin(session, 0, std::vector<v1::HyperParameters>(3, AdamWGroup())),
               ErrorCode::kInvalidArgument, "2");
  EXPECT_TRUE(Begin(session, 0).ok());
}

TEST_F(StepServiceTest, LossScaleAndNormTravel) {
  JobSpec spec = FrozenSpec();
  spec.update_mode = UpdateMode::kDeferred;
  spec.clip_scope = ClipScope::kGlobal;
  spec.loss_scaling = {1024, 2, 0.5, 1};
  const uint64_t session = OpenLoaded(spec);
  v1::BeginStepRequest request;
  request.set_session_id(session);
  for (int i = 0; i < 2; ++i) {
    *request.add_groups() = AdamWGroup();
    request.mutable_groups(i)->set_max_norm(1.5);
  }
  for (uint64_t step = 0; step < 2; ++step) {
    request.set_step(step);
    const auto begun = Call(steps_, &v1::StepService::Stub::Begin, request);
    ASSERT_TRUE(begun.ok()) << ToString(begun.status());
    EXPECT_EQ(begun->loss_scale(), step == 0 ? 1024 : 2048);
    const auto answer = Commit(session, step, 20'000);
    ASSERT_TRUE(answer.ok()) << ToString(answer.status());
    EXPECT_EQ(answer->grad_norm(), 0);
    EXPECT_EQ(answer->loss_scale(), step == 0 ? 2048 : 4096);
    EXPECT_EQ(answer->clip_factor(), 1);
  }
  const v1::JobStatus job = GetStatus().jobs(0);
  EXPECT_EQ(job.update_mode(), "deferred");
  EXPECT_EQ(job.loss_scale(), 4096);
  EXPECT_EQ(job.grad_norm(), 0);
  EXPECT_EQ(job.clipped_steps(), 0u);
  EXPECT_EQ(job.held_bytes(), 0u) << "nothing is trainable";
  EXPECT_GT(job.table_bytes(), 0u);
  request.set_step(2);
  request.mutable_groups(1)->set_max_norm(2);
  EXPECT_ERROR(Call(steps_, &v1::StepService::Stub::Begin, request).status(),
               ErrorCode::kInvalidArgument, "max_norm is 1.5 in group 0 and 2 in group 1");
}

TEST_F(StepServiceTest, UnknownSessionsAreFenced) {
  EXPECT_ERROR(Begin(77, 0), ErrorCode::kFenced, "");
  EXPECT_ERROR(Commit(77, 0, 1000).status(), ErrorCode::kFenced, "");
}

TEST_F(StepServiceTest, DeletionOfTheJobEndsItsWaits) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  std::future<StatusOr<v1::CommitResponse>> waiting =
      std::async(std::launch::async, [&] { return Commit(first_, 0, 20'000); });
  // Only a commit that waits can show that it is ended; one that comes later is refused as well.
  ASSERT_TRUE(Delete("job", true).ok());
  EXPECT_FALSE(waiting.get().ok());
}

TEST_F(StepServiceTest, StoppingAnswersEveryWait) {
  OpenPair();
  ASSERT_TRUE(Begin(first_, 0).ok());
  grpc::ClientContext context;
  v1::CommitRequest request;
  request.set_session_id(first_);
  request.set_timeout_ms(20'000);
  v1::CommitResponse response;
  std::promise<grpc::Status> done;
  steps_->async()->Commit(&context, &request, &response,
                          [&](grpc::Status status) { done.set_value(std::move(status)); });
  // A later call of the same connection has been answered, so the commit waits in the daemon.
  ASSERT_TRUE(Heartbeat(first_).ok());
  daemon_->Stop("test");
  const grpc::Status status = done.get_future().get();
  EXPECT_ERROR(rpc::FromGrpc(status, context), ErrorCode::kUnavailable, "shutting down");
  EXPECT_EQ(rpc::NodeOfError(context), "local");
}

}  // namespace
}  // namespace luwu
