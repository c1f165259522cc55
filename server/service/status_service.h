// luwu.v1.StatusService: the daemon's snapshot as protobuf. On gRPC's threads. Answers also while
// the daemon starts or stops: that is when one wants to look.
#pragma once

#include "luwu/v1/status.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class StatusServiceImpl final : public v1::StatusService::CallbackService {
 public:
  explicit StatusServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;

 private:
  const ServiceContext services_;
};

}  // namespace luwu
