#include "server/service/load_reactor.h"

#include <cstring>

#include "common/rpc/channel.h"

namespace luwu {

LoadReactor* LoadReactor::Start(const ServiceContext& services,
                                grpc::CallbackServerContext* context, v1::LoadResponse* response) {
  const auto reactor = std::make_shared<LoadReactor>(services, context, response);
  reactor->self_ = reactor;
  if (const Status status = services.responder.admission->Check(); !status.ok()) {
    reactor->End(status);
  } else {
    reactor->StartRead(&reactor->request_);
  }
  return reactor.get();
}

void LoadReactor::OnReadDone(bool ok) {
  if (!ok) {
    // The client has sent everything or is gone; or this message could not be parsed, which gRPC
    // does not tell apart. Hence the count in the answer.
    End(loader_.session != nullptr
            ? OkStatus()
            : Error(ErrorCode::kInvalidArgument, "a Load stream without a readable piece"));
    return;
  }
  if (const Status status = Take(request_); !status.ok()) {
    End(status);
    return;
  }
  StartRead(&request_);
}

Status LoadReactor::Take(const v1::LoadRequest& request) {
  RETURN_IF_ERROR(services_.responder.admission->Check());
  if (loader_.session == nullptr) {
    RETURN_IF_ERROR(Admit(services_, *context_, request));
    ASSIGN_OR_RETURN(loader_, FindLiveSession(services_, request.session_id()));
  } else if (request.session_id() != loader_.session->id()) {
    return Error(ErrorCode::kInvalidArgument,
                 "a Load stream belongs to one session; it began with {:016x} and goes on with "
                 "{:016x}",
                 loader_.session->id(), request.session_id());
  }
  RETURN_IF_ERROR(loader_.session->Check());
  const std::string& bytes = request.values();
  if (bytes.empty() || bytes.size() > rpc::kPieceBytesMax || bytes.size() % sizeof(float) != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "layer {} shard {}: a piece of {} bytes; send whole floats, at most {} bytes",
                 request.layer(), request.shard(), bytes.size(), rpc::kPieceBytesMax);
  }
  values_.resize(bytes.size() / sizeof(float));
  std::memcpy(values_.data(), bytes.data(), bytes.size());
  RETURN_IF_ERROR(loader_.job->Load(request.layer(), request.shard(), request.offset(), values_));
  response_->set_elements(response_->elements() + values_.size());
  return OkStatus();
}

void LoadReactor::End(const Status& status) {
  Finish(rpc::ToGrpc(context_, status, services_.responder.node));
}

}  // namespace luwu
