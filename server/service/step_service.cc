#include "server/service/step_service.h"

#include <vector>

#include "common/rpc/job_spec_proto.h"

namespace luwu {
namespace {

static_assert(int(Outcome::kApplied) == v1::OUTCOME_APPLIED);
static_assert(int(Outcome::kSkipped) == v1::OUTCOME_SKIPPED);
static_assert(int(Outcome::kFailed) == v1::OUTCOME_FAILED);

std::vector<HyperParameters> GroupsOf(const v1::BeginStepRequest& request) {
  std::vector<HyperParameters> groups;
  groups.reserve(static_cast<size_t>(request.groups_size()));
  for (const v1::HyperParameters& group : request.groups()) groups.push_back(rpc::FromProto(group));
  return groups;
}

}  // namespace

grpc::ServerUnaryReactor* StepServiceImpl::Begin(grpc::CallbackServerContext* context,
                                                 const v1::BeginStepRequest* request,
                                                 v1::BeginStepResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    ASSIGN_OR_RETURN(const SessionAndJob found, FindLiveSession(services_, request->session_id()));
    ASSIGN_OR_RETURN(const BegunStep begun,
                     found.job->BeginStep(*found.session, request->step(), GroupsOf(*request)));
    response->set_loss_scale(begun.loss_scale);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* StepServiceImpl::Commit(grpc::CallbackServerContext* context,
                                                  const v1::CommitRequest* request,
                                                  v1::CommitResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  const Status status = Admit(services_, *context, *request);
  StatusOr<SessionAndJob> found = status.ok() ? FindLiveSession(services_, request->session_id())
                                              : StatusOr<SessionAndJob>(status);
  if (!found.ok()) {
    reply->Finish(found.status());
    return reply.get();
  }
  const TimePoint deadline = DeadlineOf(*context, request->timeout_ms());
  found->job->AwaitCommit(
      found->session, request->step(), deadline,
      [reply, response](const StatusOr<CommitResult>& result) {
        reply->Finish(result.status(), [&] {
          response->set_outcome(static_cast<v1::Outcome>(result->outcome));
          response->set_durability(static_cast<v1::Durability>(result->durability));
          response->set_culprit(result->culprit);
          response->set_grad_norm(result->grad_norm);
          response->set_loss_scale(result->next_loss_scale);
          response->set_clip_factor(result->clip_factor);
        });
      });
  return reply.get();
}

}  // namespace luwu
