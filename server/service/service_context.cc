#include "server/service/service_context.h"

#include <algorithm>
#include <utility>

namespace luwu {
namespace {

constexpr size_t kJobNameMax = 128;

}  // namespace

Status Admit(const ServiceContext& services, const grpc::ServerContextBase& context,
             const google::protobuf::Message& request) {
  RETURN_IF_ERROR(services.responder.admission->Check());
  if (services.access == nullptr) return OkStatus();
  return services.access->CheckJob(*context.auth_context(), request);
}

Owner OwnerOf(const ServiceContext& services, const grpc::ServerContextBase& context) {
  return services.access == nullptr ? Owner() : services.access->OwnerOf(*context.auth_context());
}

StatusOr<SessionAndJob> FindLiveSession(const ServiceContext& services, uint64_t session_id) {
  SessionAndJob found;
  ASSIGN_OR_RETURN(found.session, services.sessions->Find(session_id));
  RETURN_IF_ERROR(found.session->Check());
  found.job = found.session->job();
  if (found.job == nullptr) {
    return Error(ErrorCode::kStaleEpoch, "the job of session {:016x} was deleted on node {}",
                 session_id, services.responder.node);
  }
  return found;
}

Status CheckNodesFingerprint(const ServiceContext& services, uint64_t fingerprint,
                             const std::string& caller) {
  if (fingerprint == services.nodes_fingerprint) return OkStatus();
  return Error(ErrorCode::kSchemaMismatch,
               "{} works with another node list (fingerprint {:016x}) than node {} ({:016x}): give "
               "all daemons equal [[nodes]] and restart them",
               caller, fingerprint, services.responder.node, services.nodes_fingerprint);
}

Status CheckText(const std::string& field, const std::string& text, size_t length_max) {
  if (text.size() > length_max) {
    return Error(ErrorCode::kInvalidArgument, "{} has {} bytes; at most {} are allowed", field,
                 text.size(), length_max);
  }
  const auto control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  };
  if (std::any_of(text.begin(), text.end(), control)) {
    return Error(ErrorCode::kInvalidArgument, "{} contains control characters", field);
  }
  return OkStatus();
}

Status CheckJobName(const std::string& name) { return CheckText("job", name, kJobNameMax); }

void PostOrRefuse(WorkQueue* queue, const std::shared_ptr<DeferredReply>& reply,
                  const ServiceContext& services, WorkQueue::Task task) {
  if (queue->Post(std::move(task))) return;
  const Status refusal = services.responder.admission->Check();
  reply->Finish(refusal.ok() ? Error(ErrorCode::kUnavailable,
                                     "node {} has too many calls in progress; try again",
                                     services.responder.node)
                             : refusal);
}

}  // namespace luwu
