// luwu.v1.StepService: begins and commits steps. Handlers run on gRPC's threads; a commit that
// waits holds no thread, the job calls back when the step is decided.
#pragma once

#include "luwu/v1/steps.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class StepServiceImpl final : public v1::StepService::CallbackService {
 public:
  explicit StepServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context,
                                  const v1::BeginStepRequest* request,
                                  v1::BeginStepResponse* response) override;
  grpc::ServerUnaryReactor* Commit(grpc::CallbackServerContext* context,
                                   const v1::CommitRequest* request,
                                   v1::CommitResponse* response) override;

 private:
  const ServiceContext services_;
};

}  // namespace luwu
