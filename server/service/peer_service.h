// luwu.v1.PeerService: the other nodes' reports, on the lead node; and what the lead asks of a node
// that is to go back to a point, or to keep one (peer_rollback.cc). A report waits in the job's
// coordinator and holds no thread; the rest runs on the control queue.
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
  grpc::ServerUnaryReactor* ReportDurable(grpc::CallbackServerContext* context,
                                          const v1::ReportDurableRequest* request,
                                          v1::ReportDurableResponse* response) override;
  grpc::ServerUnaryReactor* PrepareRollback(grpc::CallbackServerContext* context,
                                            const v1::PrepareRollbackRequest* request,
                                            v1::PrepareRollbackResponse* response) override;
  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context,
                                     const v1::RollbackRequest* request,
                                     v1::RollbackResponse* response) override;
  grpc::ServerUnaryReactor* MakePoint(grpc::CallbackServerContext* context,
                                      const v1::MakePointRequest* request,
                                      v1::MakePointResponse* response) override;
  grpc::ServerUnaryReactor* KeepCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::KeepCheckpointRequest* request,
                                           v1::KeepCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* DropCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::DropCheckpointRequest* request,
                                           v1::DropCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* ListStoredPoints(grpc::CallbackServerContext* context,
                                             const v1::ListStoredPointsRequest* request,
                                             v1::ListStoredPointsResponse* response) override;
  grpc::ServerUnaryReactor* AskRecovery(grpc::CallbackServerContext* context,
                                        const v1::AskRecoveryRequest* request,
                                        v1::AskRecoveryResponse* response) override;

 private:
  // What all reports need to have.
  template <typename Request>
  Status CheckReport(const Request& request) const;
  // What all requests between daemons need to have.
  template <typename Request>
  Status CheckPeer(const Request& request) const;
  // Runs `work(reply, request)`, which finishes the reply, on the control queue.
  template <typename Request, typename Work>
  grpc::ServerUnaryReactor* OnQueue(grpc::CallbackServerContext* context, const Request& request,
                                    Work work);

  const ServiceContext services_;
};

}  // namespace luwu
