#include "server/service/job_service.h"

#include <utility>

#include "common/rpc/job_spec_proto.h"

namespace luwu {
namespace {

StatusOr<JobSpec> CheckedSpec(const v1::CreateOrJoinRequest& request) {
  if (!request.has_spec()) return Error(ErrorCode::kInvalidArgument, "the request has no job spec");
  ASSIGN_OR_RETURN(JobSpec spec, rpc::FromProto(request.spec()));
  RETURN_IF_ERROR(ValidateJobSpec(spec));
  return spec;
}

void FillJoined(const JoinedJob& joined, v1::CreateOrJoinResponse* response) {
  response->set_epoch(joined.job->epoch());
  response->set_created(joined.created);
  response->set_loaded(joined.job->loaded());
  response->set_current_step(joined.job->current_step());
  response->set_lineage(joined.lineage);
  response->set_failure(joined.job->failure());
}

v1::JobPhase ToProto(JobPhase phase) {
  switch (phase) {
    case JobPhase::kLive:
      return v1::JOB_PHASE_LIVE;
    case JobPhase::kRecovering:
      return v1::JOB_PHASE_RECOVERING;
    case JobPhase::kLost:
      return v1::JOB_PHASE_LOST;
    case JobPhase::kCreating:
      break;
  }
  return v1::JOB_PHASE_UNSPECIFIED;
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::CreateOrJoin(grpc::CallbackServerContext* context,
                                                       const v1::CreateOrJoinRequest* request,
                                                       v1::CreateOrJoinResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  Status status = Admit(services_, *context, *request);
  if (status.ok()) {
    status = CheckNodesFingerprint(services_, request->nodes_fingerprint(), "the client");
  }
  StatusOr<JobSpec> spec = status.ok() ? CheckedSpec(*request) : StatusOr<JobSpec>(status);
  if (!spec.ok()) {
    reply->Finish(spec.status());
    return reply.get();
  }
  services_.jobs->CreateOrJoin({*std::move(spec), request->epoch(), OwnerOf(services_, *context)},
                               [reply, response](const StatusOr<JoinedJob>& joined) {
                                 reply->Finish(joined.status(),
                                               [&] { FillJoined(*joined, response); });
                               });
  return reply.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeJobRequest* request,
                                                   v1::DescribeJobResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    RETURN_IF_ERROR(CheckJobName(request->job()));
    ASSIGN_OR_RETURN(const DescribedJob job, services_.jobs->Describe(request->job()));
    if (!request->without_spec()) *response->mutable_spec() = rpc::ToProto(job.spec);
    response->set_epoch(job.epoch);
    response->set_lineage(job.lineage);
    response->set_first_step(job.first_step);
    response->set_phase(ToProto(job.phase));
    response->set_detail(job.detail);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::Delete(grpc::CallbackServerContext* context,
                                                 const v1::DeleteJobRequest* request,
                                                 v1::DeleteJobResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  Status status = Admit(services_, *context, *request);
  if (status.ok()) status = CheckJobName(request->job());
  if (!status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(
      services_.control_queue, reply, services_,
      [this, reply, name = request->job(), epoch = request->epoch(), force = request->force()] {
        reply->Finish(services_.jobs->Delete(name, epoch, force));
      });
  return reply.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::ListNodes(grpc::CallbackServerContext* context,
                                                    const v1::ListNodesRequest* request,
                                                    v1::ListNodesResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    for (const Node& node : services_.jobs->nodes()) *response->add_nodes() = rpc::ToProto(node);
    response->set_self(services_.jobs->self());
    response->set_nodes_fingerprint(services_.nodes_fingerprint);
    response->set_boot_id(services_.boot_id);
    return OkStatus();
  });
}

}  // namespace luwu
