#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "echo.grpc.pb.h"
#include "tests/bench/link.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kWarmUpCalls = 50;
constexpr uint64_t kCallTimeoutMs = 10'000;

class EchoHandler final : public EchoService::Service {
 public:
  grpc::Status Echo(grpc::ServerContext*, const EchoMessage* request, EchoMessage* reply) override {
    reply->set_payload(request->payload());
    return grpc::Status::OK;
  }
};

class RunningEchoServer final : public EchoServer {
 public:
  Status Start() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&handler_);
    server_ = builder.BuildAndStart();
    port_ = static_cast<uint16_t>(port);
    if (server_ == nullptr || port == 0) {
      return Error(ErrorCode::kUnavailable, "cannot start the gRPC echo server");
    }
    return OkStatus();
  }
  uint16_t port() const override { return port_; }

 private:
  EchoHandler handler_;
  std::unique_ptr<grpc::Server> server_;
  uint16_t port_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<EchoServer>> StartEchoServer() {
  auto server = std::make_unique<RunningEchoServer>();
  RETURN_IF_ERROR(server->Start());
  return StatusOr<std::unique_ptr<EchoServer>>(std::move(server));
}

StatusOr<std::vector<double>> EchoLatencies(uint16_t port, uint64_t count) {
  const auto stub = EchoService::NewStub(rpc::MakeChannel(fmt::format("127.0.0.1:{}", port)));
  EchoMessage request;
  EchoMessage reply;
  request.set_payload(std::string(kEchoBytes, 'x'));
  std::vector<double> latencies_us;
  for (uint64_t i = 0; i < kWarmUpCalls + count; ++i) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kCallTimeoutMs);
    context.set_wait_for_ready(true);
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(rpc::FromGrpc(stub->Echo(&context, request, &reply), context));
    if (i >= kWarmUpCalls) latencies_us.push_back(1e6 * (MonotonicSeconds() - begin));
  }
  return latencies_us;
}

}  // namespace luwu::bench
