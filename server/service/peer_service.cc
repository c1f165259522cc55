#include "server/service/peer_service.h"

#include <cmath>

namespace luwu {

namespace {

StatusOr<StepFindings> FindingsOf(const v1::ReportStepRequest& request, uint32_t units) {
  StepFindings findings;
  findings.non_finite = request.non_finite();
  findings.norm_limits.assign(request.norm_limits().begin(), request.norm_limits().end());
  for (const double limit : findings.norm_limits) {
    if (std::isfinite(limit) && limit >= 0) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "norm_limits holds {}; it must be finite and not negative", limit);
  }
  findings.squares.resize(units);
  for (const v1::UnitSquares& squares : request.squares()) {
    if (squares.unit() >= units) {
      return Error(ErrorCode::kInvalidArgument, "squares of clip unit {}; job {} has {} units",
                   squares.unit(), request.job(), units);
    }
    ASSIGN_OR_RETURN(findings.squares[squares.unit()], ExactSum::Parse(squares.sum()));
  }
  return findings;
}

}  // namespace

template <typename Request>
Status PeerServiceImpl::CheckReport(const Request& request) const {
  RETURN_IF_ERROR(services_.responder.admission->Check());
  RETURN_IF_ERROR(
      CheckNodesFingerprint(services_, request.nodes_fingerprint(),
                            fmt::format("the daemon that reports as node {}", request.node())));
  RETURN_IF_ERROR(CheckJobName(request.job()));
  const auto& nodes = services_.jobs->nodes();
  if (request.node() >= nodes.size() || request.node() == services_.jobs->self()) {
    return Error(ErrorCode::kInvalidArgument,
                 "node {} cannot report to node {} ({}): the list has nodes 0 to {}",
                 request.node(), services_.jobs->self(), services_.responder.node,
                 nodes.size() - 1);
  }
  if (request.epoch() == 0) {
    return Error(ErrorCode::kInvalidArgument, "a report needs the job's epoch; 0 is none");
  }
  return OkStatus();
}

grpc::ServerUnaryReactor* PeerServiceImpl::ReportStep(grpc::CallbackServerContext* context,
                                                      const v1::ReportStepRequest* request,
                                                      v1::ReportStepResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  Status status = CheckText("non_finite", request->non_finite(), kNonFiniteTextMax);
  if (status.ok()) status = CheckReport(*request);
  StatusOr<std::shared_ptr<CommitCoordinator>> coordinator =
      status.ok() ? services_.jobs->FindCoordinator(request->job(), request->epoch())
                  : StatusOr<std::shared_ptr<CommitCoordinator>>(status);
  StatusOr<StepFindings> findings = coordinator.ok()
                                        ? FindingsOf(*request, (*coordinator)->clip_units())
                                        : StatusOr<StepFindings>(coordinator.status());
  if (!findings.ok()) {
    reply->Finish(findings.status());
    return reply.get();
  }
  const StepReport report = {.epoch = request->epoch(),
                             .step = request->step(),
                             .node = request->node(),
                             .findings = *std::move(findings)};
  (*coordinator)
      ->Report(report, DeadlineOf(*context, request->timeout_ms()),
               [reply, response](const StatusOr<StepDecision>& decision) {
                 reply->Finish(decision.status(), [&] {
                   response->set_outcome(static_cast<v1::Outcome>(decision->outcome));
                   response->set_culprit(decision->culprit);
                   response->set_grad_norm(decision->grad_norm);
                   response->mutable_factors()->Add(decision->factors.begin(),
                                                    decision->factors.end());
                   response->set_next_loss_scale(decision->next_loss_scale);
                   response->set_finite_steps(decision->finite_steps);
                 });
               });
  return reply.get();
}

grpc::ServerUnaryReactor* PeerServiceImpl::ReportDurable(grpc::CallbackServerContext* context,
                                                         const v1::ReportDurableRequest* request,
                                                         v1::ReportDurableResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  const Status status = CheckReport(*request);
  StatusOr<std::shared_ptr<CommitCoordinator>> coordinator =
      status.ok() ? services_.jobs->FindCoordinator(request->job(), request->epoch())
                  : StatusOr<std::shared_ptr<CommitCoordinator>>(status);
  if (!coordinator.ok()) {
    reply->Finish(coordinator.status());
    return reply.get();
  }
  (*coordinator)
      ->ReportDurable({request->epoch(), request->step(), request->node()},
                      DeadlineOf(*context, request->timeout_ms()),
                      [reply](const Status& durable) { reply->Finish(durable); });
  return reply.get();
}

}  // namespace luwu
