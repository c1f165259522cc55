// luwu.v1.JobService: creates, joins, describes and deletes jobs; tells the node list.
// Handlers run on gRPC's threads; creation and deletion on the control queue.
#pragma once

#include "luwu/v1/jobs.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  explicit JobServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* CreateOrJoin(grpc::CallbackServerContext* context,
                                         const v1::CreateOrJoinRequest* request,
                                         v1::CreateOrJoinResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeJobRequest* request,
                                     v1::DescribeJobResponse* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteJobRequest* request,
                                   v1::DeleteJobResponse* response) override;
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override;

 private:
  const ServiceContext services_;
};

}  // namespace luwu
