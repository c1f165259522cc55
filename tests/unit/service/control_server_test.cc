// What stands around the services: health, reflection, status, the port, and peers' reports.
#include <functional>
#include <future>
#include <random>

#include <grpcpp/generic/generic_stub.h>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/service/control_server.h"
#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

const char* const kServices[] = {"luwu.v1.JobService",    "luwu.v1.SessionService",
                                 "luwu.v1.StepService",   "luwu.v1.TensorService",
                                 "luwu.v1.StatusService", "luwu.v1.PeerService"};

class ControlServerTest : public DaemonTest {
 protected:
  StatusOr<HealthCheckResponse> Check(const std::string& service) {
    const auto health = Health::NewStub(channel_);
    HealthCheckRequest request;
    request.set_service(service);
    return Call(health, &Health::Stub::Check, request);
  }
  Status Report(const std::function<void(v1::ReportStepRequest*)>& spoil) {
    v1::ReportStepRequest request;
    request.set_job("job");
    request.set_epoch(epoch_);
    request.set_node(0);
    request.set_nodes_fingerprint(FingerprintOf(daemon_->config().nodes));
    request.set_timeout_ms(100);
    spoil(&request);
    return Call(peers_, &v1::PeerService::Stub::ReportStep, request).status();
  }
  uint64_t epoch_ = 1;
};

TEST_F(ControlServerTest, EveryServiceIsHealthyWhileItServes) {
  for (const char* service : kServices) {
    const auto got = Check(service);
    ASSERT_TRUE(got.ok()) << service << ": " << ToString(got.status());
    EXPECT_EQ(got->status(), HealthCheckResponse::SERVING) << service;
  }
  EXPECT_EQ(Check("")->status(), HealthCheckResponse::SERVING);
  EXPECT_EQ(CodeOf(Check("luwu.v1.NoService").status()), ErrorCode::kNotFound);
}

TEST_F(ControlServerTest, AWatcherHearsOfTheStop) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kCallTimeoutMs);
  const auto health = Health::NewStub(channel_);
  const auto watcher = health->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watcher->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  std::future<void> stopping = std::async(std::launch::async, [&] { daemon_->Stop("test"); });
  ASSERT_TRUE(watcher->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
  stopping.get();
}

TEST_F(ControlServerTest, ReflectionListsEveryService) {
  // ServerReflectionRequest{list_services: "*"} by hand: gRPC ships no header for the message.
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kCallTimeoutMs);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  const grpc::Slice slice("\x3a\x01*", 3);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(next());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(answer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& part : slices) {
    text.append(part.begin(), part.end());
  }
  for (const char* service : kServices) {
    EXPECT_NE(text.find(service), std::string::npos) << service;
  }
  EXPECT_NE(text.find("grpc.health.v1.Health"), std::string::npos);
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  queue.Shutdown();
}

// The answer to `bytes` as the request of a unary method.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kCallTimeoutMs);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

TEST_F(ControlServerTest, RandomBytesAreRefusedByEveryMethod) {
  const std::vector<std::string> methods = {"JobService/CreateOrJoin",
                                            "JobService/Describe",
                                            "JobService/Delete",
                                            "SessionService/Open",
                                            "SessionService/Heartbeat",
                                            "SessionService/Close",
                                            "SessionService/ExchangeRegions",
                                            "StepService/Begin",
                                            "StepService/Commit",
                                            "TensorService/FinishLoad",
                                            "TensorService/Read",
                                            "TensorService/Load",
                                            "PeerService/ReportStep"};
  const std::string valid = CreateRequest(SmallSpec()).SerializeAsString();
  std::mt19937 random(20240918);
  for (const std::string& method : methods) {
    for (int i = 0; i < 100; ++i) {
      std::string bytes(random() % 300, '\0');
      if (i % 2 == 0) {
        for (char& byte : bytes) byte = static_cast<char>(random());
      } else {  // a message that was right once
        bytes = valid;
        for (int flip = 0; flip < 3; ++flip) {
          bytes[random() % bytes.size()] = static_cast<char>(random());
        }
      }
      const grpc::Status status = CallRaw(channel_, "/luwu.v1." + method, bytes);
      // Flipped bits may leave a spec that is valid; nothing else is.
      EXPECT_TRUE(!status.ok() || method == "JobService/CreateOrJoin") << method;
      EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
    }
  }
  EXPECT_EQ(Check("")->status(), HealthCheckResponse::SERVING);
}

TEST_F(ControlServerTest, StatusShowsTheDaemonAndItsJobs) {
  const uint64_t epoch = MustCreate(FrozenSpec("job", 2));
  const uint64_t session = MustOpen("job", epoch, 1);
  ASSERT_TRUE(FinishLoad(session, true).ok());
  const v1::DaemonStatus status = GetStatus();
  EXPECT_EQ(status.node(), "local");
  EXPECT_NE(status.version(), "");
  EXPECT_NE(status.kernel(), "");
  EXPECT_NE(status.pid(), 0u);
  EXPECT_EQ(status.overall(), v1::SEVERITY_OK);
  EXPECT_EQ(status.memory_budget_bytes(), 64 * kMiB);
  EXPECT_EQ(status.update_threads(), 1u);
  ASSERT_EQ(status.jobs_size(), 1);
  const v1::JobStatus& job = status.jobs(0);
  EXPECT_EQ(job.name(), "job");
  EXPECT_EQ(job.epoch(), epoch);
  EXPECT_EQ(job.state(), "training");
  EXPECT_EQ(job.world_size(), 2u);
  EXPECT_EQ(job.local_elements(), 110u);
  EXPECT_EQ(job.state_bytes() + job.served_bytes() + job.inbox_bytes() + job.overflow_bytes() +
                job.held_bytes() + job.table_bytes(),
            status.memory_used_bytes());
  ASSERT_EQ(job.workers_size(), 1);
  EXPECT_EQ(job.workers(0).rank(), 1u);
  EXPECT_EQ(job.workers(0).host(), "test-host");
  EXPECT_EQ(job.workers(0).pid(), 4001u);
  EXPECT_GT(job.workers(0).lease_left_ms(), 0u);
}

TEST_F(ControlServerTest, ACleanlyClosedWorkerIsNotLost) {
  const uint64_t session = MustOpen("job", MustCreate(FrozenSpec("job", 1)), 0);
  ASSERT_TRUE(CloseSession(session).ok());
  const v1::DaemonStatus status = GetStatus();
  EXPECT_EQ(status.checks_size(), 0) << status.DebugString();
  EXPECT_EQ(status.overall(), v1::SEVERITY_OK);
}

TEST_F(ControlServerTest, ThePortIsTakenExclusively) {
  DaemonConfig config = MakeConfig();
  config.nodes[0].control_address = daemon_->config().node().control_address;
  const StatusOr<std::unique_ptr<Daemon>> second = Daemon::Start(config);
  ASSERT_FALSE(second.ok());
  EXPECT_ERROR(second.status(), ErrorCode::kUnavailable, config.nodes[0].control_address);
  EXPECT_ERROR(second.status(), ErrorCode::kUnavailable, "in use");
}

TEST_F(ControlServerTest, ADataPortInUseIsNamed) {
  DaemonConfig config = MakeConfig();
  config.nodes[0].data_address = daemon_->config().node().data_address;
  const StatusOr<std::unique_ptr<Daemon>> second = Daemon::Start(config);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(MessageOf(second.status()).find(std::to_string(daemon_->data_port())),
            std::string::npos)
      << ToString(second.status());
}

TEST_F(ControlServerTest, AStoppedDaemonLeavesItsPortsFree) {
  const DaemonConfig config = daemon_->config();
  daemon_->Stop("test");
  daemon_->Stop("again is harmless");
  daemon_.reset();
  const StatusOr<std::unique_ptr<Daemon>> next = Daemon::Start(config);
  EXPECT_TRUE(next.ok()) << ToString(next.status());
}

TEST_F(ControlServerTest, ProbeSaysWhyAnAddressCannotBeHad) {
  EXPECT_ERROR(ProbePort("127.0.0.1").status(), ErrorCode::kInvalidArgument, "host:port");
  EXPECT_ERROR(ProbePort("192.0.2.1:7070").status(), ErrorCode::kUnavailable, "192.0.2.1:7070");
  EXPECT_ERROR(ProbePort("no-such-host.invalid:7070").status(), ErrorCode::kUnavailable,
               "resolved");
  const StatusOr<uint16_t> free = ProbePort("127.0.0.1:0");
  ASSERT_TRUE(free.ok()) << ToString(free.status());
  EXPECT_NE(*free, 0);
}

TEST_F(ControlServerTest, RefusesBadPeerReports) {
  epoch_ = MustCreate(SmallSpec());
  using Request = v1::ReportStepRequest;
  EXPECT_ERROR(Report([](Request* r) { r->set_nodes_fingerprint(1); }), ErrorCode::kSchemaMismatch,
               "node list");
  EXPECT_ERROR(Report([](Request*) {}), ErrorCode::kInvalidArgument, "node 0");  // itself
  EXPECT_ERROR(Report([](Request* r) { r->set_node(1); }), ErrorCode::kInvalidArgument, "node 1");
  EXPECT_ERROR(Report([](Request* r) { r->set_non_finite(std::string(5000, 'x')); }),
               ErrorCode::kInvalidArgument, "5000");
  EXPECT_ERROR(Report([](Request* r) { r->set_non_finite("a\nb"); }), ErrorCode::kInvalidArgument,
               "non_finite");
}

}  // namespace
}  // namespace luwu
