#include "common/rpc/channel.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>

namespace luwu::rpc {
namespace {

constexpr size_t kServerBytesMax = size_t{512} << 20;

// A channel that is never destroyed, and a call on it that has ended. gRPC 1.51 runs callback calls
// on a queue of the process, which it destroys with the last channel that has used it while its own
// threads may still do (an abort in grpc_cq_internal_unref). This channel keeps the queue; without
// credentials it never connects to anything.
struct QueueKeeper {
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel("", nullptr, grpc::ChannelArguments());
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

std::atomic<QueueKeeper*> g_keeper{nullptr};  // nobody reads it; leak checkers find it

void KeepCallbackQueue() {
  static std::once_flag once;
  std::call_once(once, [] {
    QueueKeeper* keeper = std::make_unique<QueueKeeper>().release();
    g_keeper = keeper;
    grpc::GenericStub(keeper->channel)
        .UnaryCall(&keeper->context, "/luwu.v1/Keep", grpc::StubOptions(), &keeper->request,
                   &keeper->response, [](grpc::Status) {});
  });
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Credentials& credentials) {
  KeepCallbackQueue();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMessageBytesMax);
  args.SetMaxSendMessageSize(kMessageBytesMax);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name: how long one attempt to connect may take. A busy peer needs its time.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // The kernel tells the other end of a Unix socket who this is; there is nobody in between.
  const bool plain = credentials == nullptr || address.starts_with("unix:");
  return grpc::CreateCustomChannel(address,
                                   plain ? grpc::InsecureChannelCredentials() : credentials, args);
}

void ConfigureServer(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMessageBytesMax);
  builder->SetMaxSendMessageSize(kMessageBytesMax);
  // Reading slows down when messages being received take more than this, whoever sends them.
  builder->SetResourceQuota(grpc::ResourceQuota("luwu-control").Resize(kServerBytesMax));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Clients ping every 30 s; the default tolerates one ping in 5 minutes.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
  // Otherwise a second daemon on the port would start and take half of the connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

void SetDeadline(grpc::ClientContext* context, TimePoint deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
}

}  // namespace luwu::rpc
