// What the service refuses before anything is asked of anybody.
#include "luwu/v1/checkpoints.grpc.pb.h"
#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

using CheckpointServiceTest = DaemonTest;

// Bug: ".", ".." and "-x" were names of checkpoints.
TEST_F(CheckpointServiceTest, NamesThatMeanSomethingElseAreRefused) {
  const auto stub = v1::CheckpointService::NewStub(channel_);
  const auto create = [&](const std::string& name) {
    v1::CreateCheckpointRequest request;
    request.set_job("nobody");
    request.set_name(name);
    request.set_timeout_ms(1000);
    return Call(stub, &v1::CheckpointService::Stub::Create, request).status();
  };
  for (const char* name : {"", ".", "..", "-x", ".hidden", "_", "a/b", "a b", "\xc3\xa4"}) {
    EXPECT_EQ(CodeOf(create(name)), ErrorCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(CodeOf(create(std::string(129, 'a'))), ErrorCode::kInvalidArgument);
  for (const char* name : {"a", "0", "step-100_final.v2"}) {
    EXPECT_EQ(CodeOf(create(name)), ErrorCode::kNotFound) << name;  // there is no such job
  }
}

}  // namespace
}  // namespace luwu
