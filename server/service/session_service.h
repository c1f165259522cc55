// luwu.v1.SessionService: a worker's rank, lease and data regions on this node. Handlers run on
// gRPC's threads; Open and Close, which map memory and close links, on the control queue.
#pragma once

#include "luwu/v1/sessions.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class SessionServiceImpl final : public v1::SessionService::CallbackService {
 public:
  explicit SessionServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* Open(grpc::CallbackServerContext* context,
                                 const v1::OpenSessionRequest* request,
                                 v1::OpenSessionResponse* response) override;
  grpc::ServerUnaryReactor* ExchangeRegions(grpc::CallbackServerContext* context,
                                            const v1::ExchangeRegionsRequest* request,
                                            v1::ExchangeRegionsResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Close(grpc::CallbackServerContext* context,
                                  const v1::CloseSessionRequest* request,
                                  v1::CloseSessionResponse* response) override;

 private:
  const ServiceContext services_;
};

}  // namespace luwu
