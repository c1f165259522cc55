// Every error code crosses a real RPC unchanged, with its message and its node.
#include "common/rpc/status_bridge.h"

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "common/rpc/channel.h"
#include "luwu/v1/jobs.grpc.pb.h"

namespace luwu::rpc {
namespace {

const std::vector<ErrorCode> kAllCodes = {
    ErrorCode::kInvalidArgument, ErrorCode::kBadHandle,
    ErrorCode::kBadStruct,       ErrorCode::kAbiVersion,
    ErrorCode::kUnsupported,     ErrorCode::kNotFound,
    ErrorCode::kSchemaMismatch,  ErrorCode::kPermission,
    ErrorCode::kState,           ErrorCode::kLayerClosed,
    ErrorCode::kStaleVersion,    ErrorCode::kStepMismatch,
    ErrorCode::kRankTaken,       ErrorCode::kResourceExhausted,
    ErrorCode::kAlreadyExists,   ErrorCode::kDeadline,
    ErrorCode::kWorkerLost,      ErrorCode::kUnavailable,
    ErrorCode::kCancelled,       ErrorCode::kFenced,
    ErrorCode::kNodeLost,        ErrorCode::kStaleEpoch,
    ErrorCode::kJobFailed,       ErrorCode::kCorrupt,
    ErrorCode::kInternal,
};

// Answers every call with `answer`.
class FailingService final : public v1::JobService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeJobRequest*,
                                     v1::DescribeJobResponse*) override {
    if (!raw_detail.empty()) context->AddTrailingMetadata(kErrorDetailKey, raw_detail);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(raw_detail.empty() ? ToGrpc(context, answer, "node7")
                                       : grpc::Status(grpc::StatusCode::ABORTED, "raw"));
    return reactor;
  }
  Status answer;
  std::string raw_detail;
};

class StatusBridgeTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    ConfigureServer(&builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    channel_ = MakeChannel("127.0.0.1:" + std::to_string(port));
  }

  Status Call(std::string* node = nullptr) {
    grpc::ClientContext context;
    SetTimeout(&context, 20'000);
    v1::DescribeJobResponse response;
    const grpc::Status status =
        v1::JobService::NewStub(channel_)->Describe(&context, {}, &response);
    if (node != nullptr) *node = NodeOfError(context);
    return FromGrpc(status, context);
  }

  FailingService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(StatusBridgeTest, EveryCodeArrivesWithItsMessageAndNode) {
  for (const ErrorCode code : kAllCodes) {
    service_.answer = Error(code, "it was {}", ErrorCodeName(code));
    std::string node;
    const Status got = Call(&node);
    EXPECT_EQ(CodeOf(got), code) << ErrorCodeName(code);
    EXPECT_EQ(MessageOf(got), "it was " + std::string(ErrorCodeName(code)));
    EXPECT_EQ(node, "node7");
  }
}

TEST_F(StatusBridgeTest, OkStaysOk) {
  std::string node = "unset";
  EXPECT_TRUE(Call(&node).ok());
  EXPECT_EQ(node, "");
}

TEST_F(StatusBridgeTest, AMessageTooLongForMetadataIsCutAndTheCodeStays) {
  service_.answer = Error(ErrorCode::kSchemaMismatch, "{}", std::string(100'000, 'x'));
  const Status got = Call();
  EXPECT_EQ(CodeOf(got), ErrorCode::kSchemaMismatch);
  EXPECT_EQ(MessageOf(got), std::string(kErrorMessageMax, 'x') + "...");
}

TEST_F(StatusBridgeTest, MessagesMayContainAnyText) {
  service_.answer = Error(ErrorCode::kNotFound, "no job 'Zürich %20 \t 模型'");
  EXPECT_EQ(MessageOf(Call()), "no job 'Zürich %20 \t 模型'");
}

TEST_F(StatusBridgeTest, AnUnreadableDetailFallsBackToTheCodeOfGrpc) {
  service_.raw_detail = "\xff\xff\xff";
  EXPECT_EQ(CodeOf(Call()), ErrorCode::kFenced);  // what ABORTED is nearest to
}

TEST_F(StatusBridgeTest, ACodeOfANewerPeerFallsBackToTheCodeOfGrpc) {
  v1::ErrorDetail detail;
  detail.set_code(-999);
  service_.raw_detail = detail.SerializeAsString();
  EXPECT_EQ(CodeOf(Call()), ErrorCode::kFenced);
}

TEST_F(StatusBridgeTest, ARefusedConnectionIsUnavailableAndHasNoNode) {
  server_->Shutdown();
  std::string node = "unset";
  const Status got = Call(&node);
  EXPECT_EQ(CodeOf(got), ErrorCode::kUnavailable);
  EXPECT_EQ(node, "");
}

TEST(SetDeadline, EndsACallToAPeerThatNeverAnswers) {
  const auto channel = MakeChannel("192.0.2.1:9");  // TEST-NET-1 is routed nowhere
  grpc::ClientContext context;
  SetTimeout(&context, 50);
  context.set_wait_for_ready(true);
  v1::DescribeJobResponse response;
  const grpc::Status status = v1::JobService::NewStub(channel)->Describe(&context, {}, &response);
  EXPECT_EQ(CodeOf(FromGrpc(status, context)), ErrorCode::kDeadline);
}

}  // namespace
}  // namespace luwu::rpc
