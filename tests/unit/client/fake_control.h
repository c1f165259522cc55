// The control plane of one daemon as the client's opening and deleting see it, with everything in
// the test's hand. Two of them with one node list are a cluster. Handlers run on gRPC's threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "common/base/hmac.h"
#include "common/base/sync.h"
#include "common/rpc/job_spec_proto.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/jobs.grpc.pb.h"
#include "luwu/v1/sessions.grpc.pb.h"

namespace luwu::client {

class FakeControl final : v1::JobService::Service, v1::SessionService::Service {
 public:
  static constexpr uint64_t kPatienceMs = 20'000;

  explicit FakeControl(std::string name) : name_(std::move(name)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::SessionService::Service*>(this));
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  Node node() const { return {name_, weight, address_, "127.0.0.1:1", ""}; }
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

  // Set before the client calls.
  uint32_t weight = 1;
  std::vector<Node> nodes;
  uint32_t self = 0;
  uint64_t other_layout = 0;  // not 0: places shards by rules of another version
  uint32_t heartbeat_ms = 50;
  bool created = false;  // what it answers to CreateOrJoin
  bool loaded = true;
  uint64_t step = 0;
  std::function<Status()> on_open = [] { return OkStatus(); };
  std::function<Status()> on_heartbeat = [] { return OkStatus(); };
  std::function<Status()> on_exchange = [] { return OkStatus(); };
  std::function<Status(const v1::DeleteJobRequest&)> on_delete = [](const auto&) {
    return OkStatus();
  };

  std::function<Status(v1::DescribeJobResponse*)> on_describe = [](auto*) { return OkStatus(); };

  uint64_t heartbeats() LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return heartbeats_;
  }
  // False when they have not come within kPatienceMs.
  bool AwaitHeartbeats(uint64_t count) LUWU_EXCLUDES(mutex_) {
    const TimePoint deadline = DeadlineAfter(kPatienceMs);
    MutexLock lock(mutex_);
    while (heartbeats_ < count) {
      if (!changed_.WaitUntil(mutex_, deadline) && heartbeats_ < count) return false;
    }
    return true;
  }

 private:
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* reply) override {
    for (const Node& node : nodes) *reply->add_nodes() = rpc::ToProto(node);
    reply->set_self(self);
    reply->set_nodes_fingerprint(FingerprintOf(nodes) + other_layout);
    return grpc::Status::OK;
  }
  grpc::Status CreateOrJoin(grpc::ServerContext*, const v1::CreateOrJoinRequest*,
                            v1::CreateOrJoinResponse* reply) override {
    reply->set_epoch(7);
    reply->set_created(created);
    reply->set_loaded(loaded);
    reply->set_current_step(step);
    return grpc::Status::OK;
  }
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeJobRequest*,
                        v1::DescribeJobResponse* reply) override {
    return rpc::ToGrpc(context, on_describe(reply), name_);
  }
  grpc::Status Delete(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                      v1::DeleteJobResponse*) override {
    return rpc::ToGrpc(context, on_delete(*request), name_);
  }
  grpc::Status Open(grpc::ServerContext* context, const v1::OpenSessionRequest*,
                    v1::OpenSessionResponse* reply) override {
    reply->set_session_id(1);
    reply->set_secret(std::string(sizeof(Secret), 's'));
    reply->set_heartbeat_ms(heartbeat_ms);
    reply->set_current_step(step);
    return rpc::ToGrpc(context, on_open(), name_);
  }
  grpc::Status ExchangeRegions(grpc::ServerContext* context, const v1::ExchangeRegionsRequest*,
                               v1::ExchangeRegionsResponse*) override {
    return rpc::ToGrpc(context, on_exchange(), name_);
  }
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse* reply) override {
    reply->set_current_step(step);
    {
      MutexLock lock(mutex_);
      ++heartbeats_;
      changed_.NotifyAll();
    }
    return rpc::ToGrpc(context, on_heartbeat(), name_);
  }
  grpc::Status Close(grpc::ServerContext*, const v1::CloseSessionRequest*,
                     v1::CloseSessionResponse*) override {
    return grpc::Status::OK;
  }

  const std::string name_;
  std::string address_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t heartbeats_ LUWU_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<grpc::Server> server_;  // last: stops before what it calls goes
};

}  // namespace luwu::client
