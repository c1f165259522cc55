// luwu.v1.PeerService: the other nodes' step reports, on the lead node. A report waits in the job's
// coordinator and holds no thread.
#pragma once

#include "luwu/v1/peers.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

// Longest text about a non-finite gradient; reporters cut theirs.
inline constexpr size_t kNonFiniteTextMax = 1024;

class PeerServiceImpl final : public v1::PeerService::CallbackService {
 public:
  explicit PeerServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* ReportStep(grpc::CallbackServerContext* context,
                                       const v1::ReportStepRequest* request,
                                       v1::ReportStepResponse* response) override;

 private:
  Status CheckRequest(const v1::ReportStepRequest& request) const;

  const ServiceContext services_;
};

}  // namespace luwu
