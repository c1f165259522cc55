#include "server/service/peer_service.h"

namespace luwu {

Status PeerServiceImpl::CheckRequest(const v1::ReportStepRequest& request) const {
  RETURN_IF_ERROR(services_.responder.admission->Check());
  RETURN_IF_ERROR(
      CheckNodesFingerprint(services_, request.nodes_fingerprint(),
                            fmt::format("the daemon that reports as node {}", request.node())));
  RETURN_IF_ERROR(CheckJobName(request.job()));
  RETURN_IF_ERROR(CheckText("non_finite", request.non_finite(), kNonFiniteTextMax));
  const auto& nodes = services_.jobs->nodes();
  if (request.node() >= nodes.size() || request.node() == services_.jobs->self()) {
    return Error(ErrorCode::kInvalidArgument,
                 "node {} cannot report to node {} ({}): the list has nodes 0 to {}",
                 request.node(), services_.jobs->self(), services_.responder.node,
                 nodes.size() - 1);
  }
  if (request.epoch() == 0) {
    return Error(ErrorCode::kInvalidArgument, "a step report needs the job's epoch; 0 is none");
  }
  return OkStatus();
}

grpc::ServerUnaryReactor* PeerServiceImpl::ReportStep(grpc::CallbackServerContext* context,
                                                      const v1::ReportStepRequest* request,
                                                      v1::ReportStepResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  const Status status = CheckRequest(*request);
  StatusOr<std::shared_ptr<CommitCoordinator>> coordinator =
      status.ok() ? services_.jobs->FindCoordinator(request->job(), request->epoch())
                  : StatusOr<std::shared_ptr<CommitCoordinator>>(status);
  if (!coordinator.ok()) {
    reply->Finish(coordinator.status());
    return reply.get();
  }
  const StepReport report = {.epoch = request->epoch(),
                             .step = request->step(),
                             .node = request->node(),
                             .non_finite = request->non_finite()};
  (*coordinator)
      ->Report(report, DeadlineOf(*context, request->timeout_ms()),
               [reply, response](const StatusOr<StepDecision>& decision) {
                 reply->Finish(decision.status(), [&] {
                   response->set_outcome(static_cast<v1::Outcome>(decision->outcome));
                   response->set_culprit(decision->culprit);
                 });
               });
  return reply.get();
}

}  // namespace luwu
