// The reports of a node that is not the lead, against a lead that this test plays.
#include "server/service/peer_reporter.h"

#include <atomic>
#include <cmath>
#include <deque>
#include <functional>
#include <future>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>

#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/peers.grpc.pb.h"

namespace luwu {
namespace {

// Of three clip units; the second has no gradient.
std::vector<ExactSum> Squares() {
  std::vector<ExactSum> squares(3);
  squares[0].Add(0.25);
  squares[2].Add(0x1p-298);
  squares[2].Add(0x1p200);
  return squares;
}

// Answers reports by script; the last answer of the script stays.
class ScriptedLead final : public v1::PeerService::CallbackService {
 public:
  using Answer = std::function<Status(v1::ReportStepResponse*)>;

  static Answer Decide(v1::Outcome outcome, const std::string& culprit = "") {
    return [=](v1::ReportStepResponse* response) {
      response->set_outcome(outcome);
      response->set_culprit(culprit);
      response->set_next_loss_scale(1);
      return OkStatus();
    };
  }
  static Answer DecideClipped(double grad_norm, std::vector<double> factors, float loss_scale) {
    return [=](v1::ReportStepResponse* response) {
      response->set_outcome(v1::OUTCOME_APPLIED);
      response->set_grad_norm(grad_norm);
      response->mutable_factors()->Add(factors.begin(), factors.end());
      response->set_next_loss_scale(loss_scale);
      return OkStatus();
    };
  }
  static Answer Fail(ErrorCode code) {
    return [=](v1::ReportStepResponse*) { return Error(code, "scripted"); };
  }

  void Script(std::vector<Answer> answers) {
    MutexLock lock(mutex_);
    answers_.assign(answers.begin(), answers.end());
  }
  std::vector<v1::ReportStepRequest> requests() const {
    MutexLock lock(mutex_);
    return requests_;
  }

  // False when they do not come in 20 s.
  bool AwaitRequests(size_t count) {
    const TimePoint deadline = DeadlineAfter(20'000);
    MutexLock lock(mutex_);
    while (requests_.size() < count) {
      if (!arrived_.WaitUntil(mutex_, deadline)) return requests_.size() >= count;
    }
    return true;
  }

  grpc::ServerUnaryReactor* ReportStep(grpc::CallbackServerContext* context,
                                       const v1::ReportStepRequest* request,
                                       v1::ReportStepResponse* response) override {
    Answer answer;
    {
      MutexLock lock(mutex_);
      requests_.push_back(*request);
      arrived_.NotifyAll();
      answer = answers_.front();
      if (answers_.size() > 1) answers_.pop_front();
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(context, answer(response), "lead"));
    return reactor;
  }
  // By the same script.
  grpc::ServerUnaryReactor* ReportDurable(grpc::CallbackServerContext* context,
                                          const v1::ReportDurableRequest* request,
                                          v1::ReportDurableResponse*) override {
    v1::ReportStepRequest noted;
    noted.set_job(request->job());
    noted.set_epoch(request->epoch());
    noted.set_step(request->step());
    noted.set_node(request->node());
    noted.set_nodes_fingerprint(request->nodes_fingerprint());
    v1::ReportStepResponse unused;
    return ReportStep(context, &noted, &unused);
  }

 private:
  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<Answer> answers_ LUWU_GUARDED_BY(mutex_);
  std::vector<v1::ReportStepRequest> requests_ LUWU_GUARDED_BY(mutex_);
};

class PeerReporterTest : public testing::Test {
 protected:
  void SetUp() override { StartLead(0); }

  void StartLead(int port) {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&lead_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::unique_ptr<StepReporter> Reporter(uint64_t give_up_ms = 20'000) {
    PeerReporterOptions options;
    options.lead_address = "127.0.0.1:" + std::to_string(port_);
    options.channel = rpc::MakeChannel(options.lead_address);
    options.job = "gpt";
    options.epoch = 77;
    options.self = 3;
    options.nodes_fingerprint = 1234;
    options.lead_name = "n0";
    options.give_up_ms = give_up_ms;
    return MakePeerReporter(options);
  }
  static StatusOr<StepDecision> Await(StepReporter* reporter, uint64_t step,
                                      const std::string& non_finite = "") {
    std::promise<StatusOr<StepDecision>> done;
    reporter->Report(step, {.non_finite = non_finite, .norm_limits = {2.5}, .squares = Squares()},
                     [&](StatusOr<StepDecision> decision) { done.set_value(std::move(decision)); });
    return done.get_future().get();
  }

  ScriptedLead lead_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(PeerReporterTest, TellsOfAStoredPointUntilTheLeadHasConfirmedIt) {
  lead_.Script({ScriptedLead::Fail(ErrorCode::kDeadline),
                ScriptedLead::Fail(ErrorCode::kUnavailable),
                [](v1::ReportStepResponse*) { return OkStatus(); }});
  const auto reporter = Reporter();
  std::promise<Status> done;
  reporter->ReportDurable(40, [&](const Status& status) { done.set_value(status); });
  const Status status = done.get_future().get();
  EXPECT_TRUE(status.ok()) << ToString(status);
  const auto requests = lead_.requests();
  ASSERT_EQ(requests.size(), 3u);
  for (const v1::ReportStepRequest& request : requests) {
    EXPECT_EQ(request.job(), "gpt");
    EXPECT_EQ(request.epoch(), 77u);
    EXPECT_EQ(request.step(), 40u);
    EXPECT_EQ(request.node(), 3u);
    EXPECT_EQ(request.nodes_fingerprint(), 1234u);
  }
}

TEST_F(PeerReporterTest, RefusalOfAStoredPointIsToldAtOnce) {
  lead_.Script({ScriptedLead::Fail(ErrorCode::kRolledBack)});
  const auto reporter = Reporter();
  std::promise<Status> done;
  reporter->ReportDurable(40, [&](const Status& status) { done.set_value(status); });
  EXPECT_EQ(CodeOf(done.get_future().get()), ErrorCode::kRolledBack);
}

TEST_F(PeerReporterTest, BringsTheReportThereAndTheDecisionBack) {
  lead_.Script({ScriptedLead::Decide(v1::OUTCOME_SKIPPED, "n1: layer 4")});
  const auto reporter = Reporter();
  const auto decision = Await(reporter.get(), 9, "layer 2 tensor w rank 1");
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  EXPECT_EQ(decision->outcome, Outcome::kSkipped);
  EXPECT_EQ(decision->culprit, "n1: layer 4");
  ASSERT_EQ(lead_.requests().size(), 1u);
  const v1::ReportStepRequest request = lead_.requests()[0];
  EXPECT_EQ(request.job(), "gpt");
  EXPECT_EQ(request.epoch(), 77u);
  EXPECT_EQ(request.step(), 9u);
  EXPECT_EQ(request.node(), 3u);
  EXPECT_EQ(request.non_finite(), "layer 2 tensor w rank 1");
  EXPECT_EQ(request.nodes_fingerprint(), 1234u);
  EXPECT_GT(request.timeout_ms(), 0u);
  ASSERT_EQ(request.norm_limits_size(), 1);
  EXPECT_EQ(request.norm_limits(0), 2.5);
  EXPECT_EQ(request.squares_size(), 0) << "of no use when something is not finite";
}

TEST_F(PeerReporterTest, BringsSumsThereAndNormsBack) {
  lead_.Script({ScriptedLead::DecideClipped(3.5, {1, 0.5, 0.25}, 1024)});
  const auto reporter = Reporter();
  const auto decision = Await(reporter.get(), 9);
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  EXPECT_EQ(decision->grad_norm, 3.5);
  EXPECT_EQ(decision->factors, (std::vector<double>{1, 0.5, 0.25}));
  EXPECT_EQ(decision->next_loss_scale, 1024);
  const v1::ReportStepRequest request = lead_.requests()[0];
  ASSERT_EQ(request.squares_size(), 2);
  EXPECT_EQ(request.squares(0).unit(), 0u);
  EXPECT_EQ(request.squares(1).unit(), 2u);
  EXPECT_EQ(*ExactSum::Parse(request.squares(1).sum()), Squares()[2]);
}

TEST_F(PeerReporterTest, ADecisionThatMakesNoSenseIsAnError) {
  const double nan = std::nan("");
  for (const auto& answer :
       {ScriptedLead::DecideClipped(1, {1.5}, 1), ScriptedLead::DecideClipped(1, {-0.5}, 1),
        ScriptedLead::DecideClipped(1, {nan}, 1), ScriptedLead::DecideClipped(1, {}, 0),
        ScriptedLead::DecideClipped(1, {}, -2), ScriptedLead::DecideClipped(1, {}, float(nan))}) {
    lead_.Script({answer});
    const auto reporter = Reporter();
    EXPECT_EQ(CodeOf(Await(reporter.get(), 0).status()), ErrorCode::kInternal);
  }
}

TEST_F(PeerReporterTest, AsksAgainWhileTheLeadWaitsForOthers) {
  lead_.Script({ScriptedLead::Fail(ErrorCode::kDeadline), ScriptedLead::Fail(ErrorCode::kDeadline),
                ScriptedLead::Decide(v1::OUTCOME_APPLIED)});
  // Patience with a lead that answers has no end.
  const auto reporter = Reporter(0);
  const auto decision = Await(reporter.get(), 0);
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  EXPECT_EQ(decision->outcome, Outcome::kApplied);
  EXPECT_EQ(lead_.requests().size(), 3u);
}

TEST_F(PeerReporterTest, AsksAgainWhileTheLeadStarts) {
  lead_.Script(
      {ScriptedLead::Fail(ErrorCode::kUnavailable), ScriptedLead::Decide(v1::OUTCOME_APPLIED)});
  const auto reporter = Reporter();
  EXPECT_TRUE(Await(reporter.get(), 0).ok());
  EXPECT_EQ(lead_.requests().size(), 2u);
}

TEST_F(PeerReporterTest, ALeadThatCameBackIsFound) {
  server_->Shutdown();
  server_->Wait();
  server_.reset();
  lead_.Script({ScriptedLead::Decide(v1::OUTCOME_APPLIED)});
  const auto reporter = Reporter();
  std::promise<StatusOr<StepDecision>> done;
  reporter->Report(0, {}, [&](StatusOr<StepDecision> d) { done.set_value(std::move(d)); });
  StartLead(port_);
  const auto decision = done.get_future().get();
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
}

TEST_F(PeerReporterTest, AnUnreachableLeadIsNamed) {
  server_->Shutdown();
  const auto reporter = Reporter(300);
  const auto decision = Await(reporter.get(), 0);
  ASSERT_FALSE(decision.ok());
  EXPECT_EQ(CodeOf(decision.status()), ErrorCode::kNodeLost);
  EXPECT_NE(MessageOf(decision.status()).find("n0"), std::string::npos);
  EXPECT_NE(MessageOf(decision.status()).find(std::to_string(port_)), std::string::npos);
}

TEST_F(PeerReporterTest, ALeadThatLostTheJobIsALostNode) {
  for (const ErrorCode code : {ErrorCode::kNotFound, ErrorCode::kStaleEpoch}) {
    lead_.Script({ScriptedLead::Fail(code)});
    const auto reporter = Reporter();
    const auto decision = Await(reporter.get(), 0);
    EXPECT_EQ(CodeOf(decision.status()), ErrorCode::kNodeLost) << ToString(decision.status());
  }
}

TEST_F(PeerReporterTest, OtherRefusalsArePassedOn) {
  for (const ErrorCode code : {ErrorCode::kStepMismatch, ErrorCode::kSchemaMismatch}) {
    lead_.Script({ScriptedLead::Fail(code)});
    const auto reporter = Reporter();
    EXPECT_EQ(CodeOf(Await(reporter.get(), 0).status()), code);
  }
}

TEST_F(PeerReporterTest, AnOutcomeOfANewerLeadIsAnErrorNotADecision) {
  lead_.Script({ScriptedLead::Decide(static_cast<v1::Outcome>(44))});
  const auto reporter = Reporter();
  EXPECT_EQ(CodeOf(Await(reporter.get(), 0).status()), ErrorCode::kInternal);
  lead_.Script({ScriptedLead::Decide(v1::OUTCOME_UNSPECIFIED)});
  EXPECT_EQ(CodeOf(Await(reporter.get(), 0).status()), ErrorCode::kInternal);
}

TEST_F(PeerReporterTest, TheEndOfTheJobEndsTheReport) {
  server_->Shutdown();
  auto reporter = Reporter(600'000);
  std::promise<StatusOr<StepDecision>> done;
  reporter->Report(0, {}, [&](StatusOr<StepDecision> d) { done.set_value(std::move(d)); });
  reporter.reset();
  const auto decision = done.get_future().get();
  EXPECT_EQ(CodeOf(decision.status()), ErrorCode::kCancelled);
}

TEST_F(PeerReporterTest, TheDestructorFindsAReportInAnyState) {
  lead_.Script({ScriptedLead::Fail(ErrorCode::kDeadline)});  // a storm of repetitions
  for (int i = 0; i < 50; ++i) {
    const size_t awaited = lead_.requests().size() + 1;
    std::atomic<int> calls{0};
    auto reporter = Reporter();
    reporter->Report(i, {}, [&](const StatusOr<StepDecision>&) { ++calls; });
    if (i % 2 == 0) {
      EXPECT_TRUE(lead_.AwaitRequests(awaited));
    }
    reporter.reset();
    EXPECT_EQ(calls, 1);
  }
}

}  // namespace
}  // namespace luwu
