// A daemon as far as luwuctl can tell: answers the node list, status, health and delete with what
// the test sets. Set the answers before the client asks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "common/rpc/status_bridge.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "luwu/v1/jobs.grpc.pb.h"
#include "luwu/v1/status.grpc.pb.h"

namespace luwu::cli {

class FakeDaemon : v1::JobService::Service {
 public:
  FakeDaemon() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(&status_service_);
    builder.RegisterService(&health_service_);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  const std::string& address() const { return address_; }
  v1::DaemonStatus& status() { return status_service_.status; }
  void set_health(grpc::health::v1::HealthCheckResponse::ServingStatus health) {
    health_service_.health = health;
  }
  void set_nodes(std::vector<std::pair<std::string, std::string>> nodes) {
    nodes_ = std::move(nodes);
  }
  void set_weight(uint32_t weight) { weight_ = weight; }  // of all nodes that it lists
  void set_delete_result(Status result) { delete_result_ = std::move(result); }
  std::vector<v1::DeleteJobRequest> deletes;

 private:
  struct StatusService : v1::StatusService::Service {
    grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                           v1::GetStatusResponse* reply) override {
      *reply->mutable_status() = status;
      return grpc::Status::OK;
    }
    v1::DaemonStatus status;
  };
  struct HealthService : grpc::health::v1::Health::Service {
    grpc::Status Check(grpc::ServerContext*, const grpc::health::v1::HealthCheckRequest*,
                       grpc::health::v1::HealthCheckResponse* reply) override {
      reply->set_status(health);
      return grpc::Status::OK;
    }
    grpc::health::v1::HealthCheckResponse::ServingStatus health =
        grpc::health::v1::HealthCheckResponse::SERVING;
  };

  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* reply) override {
    for (const auto& [name, address] : nodes_) {
      v1::Node* node = reply->add_nodes();
      node->set_name(name);
      node->set_control_address(address);
      node->set_weight(weight_);
    }
    return grpc::Status::OK;
  }
  grpc::Status Delete(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                      v1::DeleteJobResponse*) override {
    deletes.push_back(*request);
    return rpc::ToGrpc(context, delete_result_, "fake");
  }

  StatusService status_service_;
  HealthService health_service_;
  std::vector<std::pair<std::string, std::string>> nodes_;
  uint32_t weight_ = 0;
  Status delete_result_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;  // last: stops before what it calls goes
};

}  // namespace luwu::cli
