#include "server/service/checkpoint_service.h"

#include <algorithm>
#include <memory>
#include <string>

namespace luwu {
namespace {

constexpr size_t kCheckpointNameMax = 128;

// Of calls without a time of their own.
constexpr uint64_t kAnswerMs = 10'000;

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// The names go into keys, tables, command lines and paths: none may look like an option, a hidden
// file or a folder above.
Status CheckCheckpointName(const std::string& name) {
  const auto allowed = [](char c) { return IsAlphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  if (name.empty() || name.size() > kCheckpointNameMax || !IsAlphanumeric(name.front()) ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return Error(ErrorCode::kInvalidArgument,
                 "a checkpoint's name begins with a letter or digit and has 1 to {} characters of "
                 "letters, digits, '.', '_' and '-'",
                 kCheckpointNameMax);
  }
  return OkStatus();
}

// Of a checkpoint that exists: those of former releases may have other names.
Status CheckFormerName(const std::string& name) {
  if (!name.empty() && name.size() <= kCheckpointNameMax) return OkStatus();
  return CheckCheckpointName(name);
}

TimePoint DeadlineOrDefault(const grpc::CallbackServerContext& context, uint64_t timeout_ms) {
  return DeadlineOf(context, timeout_ms == 0 ? kAnswerMs : timeout_ms);
}

Caller CallerOf(const std::shared_ptr<DeferredReply>& reply, TimePoint deadline) {
  return Caller(deadline, [reply] { return reply->finished(); });
}

template <typename Request>
Status CheckArguments(const ServiceContext& services, const grpc::ServerContextBase& context,
                      const Request& request) {
  RETURN_IF_ERROR(Admit(services, context, request));
  RETURN_IF_ERROR(CheckJobName(request.job()));
  return CheckFormerName(request.name());
}

void Fill(const persist::Checkpoint& checkpoint, v1::CheckpointInfo* out) {
  out->set_name(checkpoint.name);
  out->set_step(checkpoint.point.step);
  out->set_created_unix_s(checkpoint.created_unix_s);
}

}  // namespace

grpc::ServerUnaryReactor* CheckpointServiceImpl::Create(grpc::CallbackServerContext* context,
                                                        const v1::CreateCheckpointRequest* request,
                                                        v1::CreateCheckpointResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  Status status = CheckArguments(services_, *context, *request);
  if (status.ok()) status = CheckCheckpointName(request->name());
  if (!status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.points_queue, reply, services_,
               [this, reply, response, job = request->job(), name = request->name(),
                caller = CallerOf(reply, DeadlineOf(*context, request->timeout_ms()))] {
                 if (caller.gone()) return;
                 const auto made = services_.checkpoints->Create(job, name, caller);
                 reply->Finish(made.status(), [&] { Fill(*made, response->mutable_checkpoint()); });
               });
  return reply.get();
}

grpc::ServerUnaryReactor* CheckpointServiceImpl::List(grpc::CallbackServerContext* context,
                                                      const v1::ListCheckpointsRequest* request,
                                                      v1::ListCheckpointsResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  Status status = Admit(services_, *context, *request);
  if (status.ok()) status = CheckJobName(request->job());
  if (!status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.lists_queue, reply, services_,
               [this, reply, response, job = request->job(),
                deadline = DeadlineOrDefault(*context, request->timeout_ms())] {
                 if (reply->finished()) return;
                 const auto listed = services_.checkpoints->List(job, deadline);
                 reply->Finish(listed.status(), [&] {
                   for (const auto& checkpoint : *listed) {
                     Fill(checkpoint, response->add_checkpoints());
                   }
                 });
               });
  return reply.get();
}

grpc::ServerUnaryReactor* CheckpointServiceImpl::Delete(grpc::CallbackServerContext* context,
                                                        const v1::DeleteCheckpointRequest* request,
                                                        v1::DeleteCheckpointResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (const Status status = CheckArguments(services_, *context, *request); !status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.lists_queue, reply, services_,
               [this, reply, job = request->job(), name = request->name(),
                caller = CallerOf(reply, DeadlineOrDefault(*context, request->timeout_ms()))] {
                 if (caller.gone()) return;
                 reply->Finish(services_.checkpoints->Delete(job, name, caller));
               });
  return reply.get();
}

grpc::ServerUnaryReactor* CheckpointServiceImpl::Restore(
    grpc::CallbackServerContext* context, const v1::RestoreCheckpointRequest* request,
    v1::RestoreCheckpointResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (const Status status = CheckArguments(services_, *context, *request); !status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.points_queue, reply, services_,
               [this, reply, response, job = request->job(), name = request->name(),
                caller = CallerOf(reply, DeadlineOf(*context, request->timeout_ms()))] {
                 if (caller.gone()) return;
                 const auto point = services_.checkpoints->Restore(job, name, caller);
                 reply->Finish(point.status(), [&] { response->set_step(point->step); });
               });
  return reply.get();
}

}  // namespace luwu
