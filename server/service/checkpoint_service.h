// luwu.v1.CheckpointService, on the lead node: luwuctl's door to named checkpoints. Handlers check,
// and put the work on the queues "luwu-points" (Create, Restore: as long as it takes) and
// "luwu-lists" (List, Delete). What was given up before it began is not carried out.
#pragma once

#include "luwu/v1/checkpoints.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class CheckpointServiceImpl final : public v1::CheckpointService::CallbackService {
 public:
  explicit CheckpointServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* Create(grpc::CallbackServerContext* context,
                                   const v1::CreateCheckpointRequest* request,
                                   v1::CreateCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListCheckpointsRequest* request,
                                 v1::ListCheckpointsResponse* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteCheckpointRequest* request,
                                   v1::DeleteCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* Restore(grpc::CallbackServerContext* context,
                                    const v1::RestoreCheckpointRequest* request,
                                    v1::RestoreCheckpointResponse* response) override;

 private:
  const ServiceContext services_;
};

}  // namespace luwu
