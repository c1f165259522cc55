#include "server/service/tensor_service.h"

#include "server/service/load_reactor.h"

namespace luwu {

grpc::ServerReadReactor<v1::LoadRequest>* TensorServiceImpl::Load(
    grpc::CallbackServerContext* context, v1::LoadResponse* response) {
  return LoadReactor::Start(services_, context, response);
}

grpc::ServerUnaryReactor* TensorServiceImpl::FinishLoad(grpc::CallbackServerContext* context,
                                                        const v1::FinishLoadRequest* request,
                                                        v1::FinishLoadResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  const Status status = Admit(services_, *context, *request);
  StatusOr<SessionAndJob> found = status.ok() ? FindLiveSession(services_, request->session_id())
                                              : StatusOr<SessionAndJob>(status);
  if (!found.ok()) {
    reply->Finish(found.status());
    return reply.get();
  }
  PostOrRefuse(services_.control_queue, reply, services_,
               [reply, job = found->job, allow_missing = request->allow_missing()] {
                 reply->Finish(job->FinishLoad(allow_missing));
               });
  return reply.get();
}

grpc::ServerWriteReactor<v1::ReadResponse>* TensorServiceImpl::Read(
    grpc::CallbackServerContext* context, const v1::ReadRequest* request) {
  return ReadReactor::Start(services_, &read_limits_, context, *request);
}

}  // namespace luwu
