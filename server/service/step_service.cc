#include "server/service/step_service.h"

#include <vector>

#include "common/rpc/job_spec_proto.h"

namespace luwu {
namespace {

static_assert(int(Outcome::kApplied) == v1::OUTCOME_APPLIED);
static_assert(int(Outcome::kSkipped) == v1::OUTCOME_SKIPPED);
static_assert(int(Outcome::kFailed) == v1::OUTCOME_FAILED);

// One valid set for each group of the job.
StatusOr<std::vector<HyperParameters>> CheckedGroups(const v1::BeginStepRequest& request,
                                                     const JobSpec& spec) {
  const auto given = static_cast<uint32_t>(request.groups_size());
  if (given != spec.groups) {
    return Error(ErrorCode::kInvalidArgument,
                 "step {} was begun with hyper-parameters for {} groups; job {} has {}",
                 request.step(), given, spec.name, spec.groups);
  }
  std::vector<HyperParameters> groups;
  groups.reserve(given);
  for (uint32_t group = 0; group < given; ++group) {
    groups.push_back(rpc::FromProto(request.groups(static_cast<int>(group))));
    RETURN_IF_ERROR(ValidateHyperParameters(spec.optimizer, group, groups.back()));
  }
  return groups;
}

}  // namespace

grpc::ServerUnaryReactor* StepServiceImpl::Begin(grpc::CallbackServerContext* context,
                                                 const v1::BeginStepRequest* request,
                                                 v1::BeginStepResponse*) {
  return Reply(context, services_.responder, [&]() -> Status {
    ASSIGN_OR_RETURN(const SessionAndJob found, FindLiveSession(services_, request->session_id()));
    ASSIGN_OR_RETURN(const std::vector<HyperParameters> groups,
                     CheckedGroups(*request, found.job->spec()));
    return found.job->BeginStep(*found.session, request->step(), groups);
  });
}

grpc::ServerUnaryReactor* StepServiceImpl::Commit(grpc::CallbackServerContext* context,
                                                  const v1::CommitRequest* request,
                                                  v1::CommitResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  Status status = services_.responder.admission->Check();
  StatusOr<SessionAndJob> found = status.ok() ? FindLiveSession(services_, request->session_id())
                                              : StatusOr<SessionAndJob>(status);
  if (!found.ok()) {
    reply->Finish(found.status());
    return reply.get();
  }
  const TimePoint deadline = DeadlineOf(*context, request->timeout_ms());
  found->job->AwaitCommit(found->session, request->step(), deadline,
                          [reply, response](const StatusOr<CommitResult>& result) {
                            reply->Finish(result.status(), [&] {
                              response->set_outcome(static_cast<v1::Outcome>(result->outcome));
                              response->set_durability(v1::DURABILITY_MEMORY);
                              response->set_culprit(result->culprit);
                            });
                          });
  return reply.get();
}

}  // namespace luwu
