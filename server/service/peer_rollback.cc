// The lead's requests to this node that are about points: to go back to one, to make one, to keep
// one. They may take long, so they run on the control queue.
#include "server/service/peer_service.h"
#include "server/service/point_proto.h"
#include "server/service/recovery_driver.h"

namespace luwu {

template <typename Request>
Status PeerServiceImpl::CheckPeer(const Request& request) const {
  RETURN_IF_ERROR(services_.responder.admission->Check());
  RETURN_IF_ERROR(CheckNodesFingerprint(services_, request.nodes_fingerprint(), "the daemon"));
  return CheckJobName(request.job());
}

template <typename Request, typename Work>
grpc::ServerUnaryReactor* PeerServiceImpl::OnQueue(grpc::CallbackServerContext* context,
                                                   const Request& request, Work work) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (const Status status = CheckPeer(request); !status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.control_queue, reply, services_, [reply, request, work = std::move(work)] {
    if (!reply->finished()) work(*reply, request);
  });
  return reply.get();
}

grpc::ServerUnaryReactor* PeerServiceImpl::PrepareRollback(
    grpc::CallbackServerContext* context, const v1::PrepareRollbackRequest* request,
    v1::PrepareRollbackResponse* response) {
  return OnQueue(context, *request, [this, response](DeferredReply& reply, const auto& asked) {
    if (asked.round() == 0) {
      reply.Finish(Error(ErrorCode::kInvalidArgument, "a round has an epoch; 0 is none"));
      return;
    }
    const StatusOr<StoredPoints> stored =
        services_.jobs->PrepareRollback({asked.job(), asked.lineage()}, asked.round());
    reply.Finish(stored.status(), [&] { FillStored(*stored, response); });
  });
}

grpc::ServerUnaryReactor* PeerServiceImpl::Rollback(grpc::CallbackServerContext* context,
                                                    const v1::RollbackRequest* request,
                                                    v1::RollbackResponse*) {
  return OnQueue(context, *request, [this](DeferredReply& reply, const auto& asked) {
    reply.Finish(services_.jobs->RollBack(asked.job(), asked.round(), FromProto(asked.target())));
  });
}

grpc::ServerUnaryReactor* PeerServiceImpl::MakePoint(grpc::CallbackServerContext* context,
                                                     const v1::MakePointRequest* request,
                                                     v1::MakePointResponse*) {
  return OnQueue(context, *request, [this](DeferredReply& reply, const auto& asked) {
    reply.Finish(services_.jobs->MakePoint(asked.job(), asked.epoch(), asked.step()));
  });
}

grpc::ServerUnaryReactor* PeerServiceImpl::KeepCheckpoint(grpc::CallbackServerContext* context,
                                                          const v1::KeepCheckpointRequest* request,
                                                          v1::KeepCheckpointResponse*) {
  return OnQueue(context, *request, [this](DeferredReply& reply, const auto& asked) {
    reply.Finish(services_.jobs->KeepCheckpoint({.job = asked.job(),
                                                 .epoch = asked.epoch(),
                                                 .name = asked.name(),
                                                 .step = asked.step(),
                                                 .created_unix_s = asked.created_unix_s()}));
  });
}

grpc::ServerUnaryReactor* PeerServiceImpl::DropCheckpoint(grpc::CallbackServerContext* context,
                                                          const v1::DropCheckpointRequest* request,
                                                          v1::DropCheckpointResponse*) {
  return OnQueue(context, *request, [this](DeferredReply& reply, const auto& asked) {
    reply.Finish(services_.jobs->DropCheckpoint(asked.job(), asked.name()));
  });
}

grpc::ServerUnaryReactor* PeerServiceImpl::ListStoredPoints(
    grpc::CallbackServerContext* context, const v1::ListStoredPointsRequest* request,
    v1::ListStoredPointsResponse* response) {
  return OnQueue(context, *request, [this, response](DeferredReply& reply, const auto& asked) {
    if (!asked.verify_checkpoint().empty()) {
      const Status sound = services_.jobs->VerifyCheckpoint(asked.job(), asked.verify_checkpoint());
      if (!sound.ok()) {
        reply.Finish(sound);
        return;
      }
    }
    const StatusOr<StoredPoints> stored = services_.jobs->ListStored(asked.job());
    reply.Finish(stored.status(), [&] { FillStored(*stored, response); });
  });
}

grpc::ServerUnaryReactor* PeerServiceImpl::AskRecovery(grpc::CallbackServerContext* context,
                                                       const v1::AskRecoveryRequest* request,
                                                       v1::AskRecoveryResponse*) {
  return Reply(context, services_, *request, [&]() -> Status {
    RETURN_IF_ERROR(CheckPeer(*request));
    if (!services_.jobs->is_lead() || services_.recovery == nullptr) {
      return Error(ErrorCode::kUnsupported, "node {} is no lead with a data directory",
                   services_.responder.node);
    }
    const std::vector<Node>& nodes = services_.jobs->nodes();
    if (request->node() >= nodes.size()) {
      return Error(ErrorCode::kInvalidArgument, "node {} asks; the node list has {} nodes",
                   request->node(), nodes.size());
    }
    return services_.recovery->Begin({.job = request->job(),
                                      .epoch = request->epoch(),
                                      .node = "node " + nodes[request->node()].name,
                                      .just_started = request->just_started()});
  });
}

}  // namespace luwu
