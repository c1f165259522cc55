#include "server/service/interchange_service.h"

#include <utility>

#include "common/base/check.h"
#include "server/interchange/export_folder.h"
#include "server/service/interchange_work.h"
#include "server/service/job_tensors.h"

namespace luwu {
namespace {

// A job of the same name that is made later is another one.
std::string ClaimOf(const Job& job) { return fmt::format("{}#{}", job.spec().name, job.epoch()); }

Status TakeJob(const Job& job, InterchangeClaims* claims, uint64_t operation) {
  if (claims->Take(ClaimOf(job), operation)) return OkStatus();
  return Error(ErrorCode::kAlreadyExists,
               "another import into job '{}' is in progress; import again when it has ended (one "
               "whose luwuctl was killed ends within {} s)",
               job.spec().name, InterchangeClaims::kSilentMs / 1000);
}

std::string DraftOf(const std::string& folder, const std::string& draft) {
  return folder + "/" + draft;
}

// Drafts are claimed by their own number; 0 claims nothing.
uint64_t OwnerOf(const std::string& draft) {
  return interchange::IsDraftName(draft) ? interchange::ExportNumberOf(draft) : 0;
}

interchange::TrainingState ForFiles(StartPoint state) {
  return {state.step, state.loss_scale, state.finite_run, std::move(state.applied)};
}

Status CheckState(const JobSpec& spec, const StartPoint& state) {
  bool fits = state.applied.size() == spec.layers.size();
  for (size_t i = 0; fits && i < state.applied.size(); ++i) {
    fits = state.applied[i].size() == ShardCount(spec.layers[i].elements, spec.shard_elements);
  }
  if (fits) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "the training state has other layers and shards than job '{}'", spec.name);
}

interchange::ExportOptions OptionsFrom(const v1::BeginExportRequest& request) {
  interchange::ExportOptions options;
  options.folder = request.folder();
  options.dtype = static_cast<DType>(request.dtype());
  options.file_bytes_max = request.file_bytes_max();
  options.optimizer_state = request.optimizer_state();
  options.overwrite = request.overwrite();
  return options;
}

Status FinishLoad(const ServiceContext& services, Job& job, const ClaimedCall& call,
                  const v1::FinishImportRequest& request) {
  if (!call.begun()) {
    return Error(ErrorCode::kState,
                 "job '{}' was given to another import meanwhile, which may have replaced some of "
                 "its weights; import again",
                 job.spec().name);
  }
  if (!request.has_state()) return job.FinishLoad(request.allow_missing());
  const StartPoint start = StateFrom(request.state());
  // The job first: it refuses when a rank has begun a step already.
  RETURN_IF_ERROR(job.FinishLoadAt(start));
  if (!services.jobs->is_lead()) return OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator,
                   services.jobs->FindCoordinator(request.job(), request.epoch()));
  return coordinator->StartAt(start.step, start.loss_scale, start.finite_run);
}

}  // namespace

bool InterchangeServiceImpl::Admits(const std::shared_ptr<DeferredReply>& reply,
                                    const grpc::CallbackServerContext& context,
                                    const google::protobuf::Message& request) const {
  const Status status = Admit(services_, context, request);
  if (!status.ok()) reply->Finish(status);
  return status.ok();
}

template <typename Request>
std::shared_ptr<Job> InterchangeServiceImpl::FindJob(const std::shared_ptr<DeferredReply>& reply,
                                                     const grpc::CallbackServerContext& context,
                                                     const Request& request) const {
  if (!Admits(reply, context, request)) return nullptr;
  Status status = CheckJobName(request.job());
  if (status.ok()) {
    StatusOr<std::shared_ptr<Job>> job = services_.jobs->Find(request.job(), request.epoch());
    if (job.ok()) return *std::move(job);
    status = job.status();
  }
  reply->Finish(status);
  return nullptr;
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::BeginImport(grpc::CallbackServerContext* context,
                                                              const v1::BeginImportRequest* request,
                                                              v1::BeginImportResponse*) {
  return Reply(context, services_, *request, [&]() -> Status {
    RETURN_IF_ERROR(CheckJobName(request->job()));
    ASSIGN_OR_RETURN(const auto job, services_.jobs->Find(request->job(), request->epoch()));
    return TakeJob(*job, imports_.get(), request->operation());
  });
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::Import(grpc::CallbackServerContext* context,
                                                         const v1::ImportRequest* request,
                                                         v1::ImportResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (auto job = FindJob(reply, *context, *request)) {
    const uint64_t operation = request->operation();
    const Status status = TakeJob(*job, imports_.get(), operation);
    if (!status.ok()) {
      reply->Finish(status);
      return reply.get();
    }
    auto call = std::make_unique<ClaimedCall>(imports_, ClaimOf(*job), operation);
    StartRun(
        services_, reply,
        {runs_, operation, MakeImportWork(std::move(job), std::move(call), *request, response)});
  }
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::FinishImport(
    grpc::CallbackServerContext* context, const v1::FinishImportRequest* request,
    v1::FinishImportResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (auto job = FindJob(reply, *context, *request)) {
    PostOrRefuse(services_.control_queue, reply, services_,
                 [services = services_, reply, job, imports = imports_, request = *request] {
                   const ClaimedCall call(imports, ClaimOf(*job), request.operation());
                   reply->Finish(FinishLoad(services, *job, call, request));
                 });
  }
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::AbandonImport(
    grpc::CallbackServerContext* context, const v1::AbandonImportRequest* request,
    v1::AbandonImportResponse*) {
  return Reply(context, services_, *request, [&]() -> Status {
    RETURN_IF_ERROR(CheckJobName(request->job()));
    ASSIGN_OR_RETURN(const auto job, services_.jobs->Find(request->job(), request->epoch()));
    imports_->GiveUp(ClaimOf(*job), request->operation());
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::DescribeState(
    grpc::CallbackServerContext* context, const v1::DescribeStateRequest* request,
    v1::DescribeStateResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    RETURN_IF_ERROR(CheckJobName(request->job()));
    if (!request->checkpoint().empty()) {
      ASSIGN_OR_RETURN(const auto source,
                       OpenCheckpoint(*services_.jobs, request->job(), request->checkpoint()));
      response->set_loaded(true);
      response->set_point_epoch(source->point().epoch);
      FillState(source->WhereItStands(), response->mutable_state());
      return OkStatus();
    }
    ASSIGN_OR_RETURN(const auto job, services_.jobs->Find(request->job(), request->epoch()));
    response->set_epoch(job->epoch());
    response->set_loaded(job->loaded());
    FillState(job->WhereItStands(), response->mutable_state());
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::CheckExport(grpc::CallbackServerContext* context,
                                                              const v1::CheckExportRequest* request,
                                                              v1::CheckExportResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (!Admits(reply, *context, *request)) return reply.get();
  PostOrRefuse(services_.control_queue, reply, services_,
               [reply, jobs = services_.jobs, folder = request->folder()] {
                 reply->Finish(CheckOutsideDataDirectory(*jobs, folder));
               });
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::BeginExport(grpc::CallbackServerContext* context,
                                                              const v1::BeginExportRequest* request,
                                                              v1::BeginExportResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (!Admits(reply, *context, *request)) return reply.get();
  const StatusOr<JobSpec> spec = SpecFor(*request);
  if (!spec.ok()) {
    reply->Finish(spec.status());
    return reply.get();
  }
  PostOrRefuse(services_.control_queue, reply, services_,
               [reply, spec = *spec, response, options = OptionsFrom(*request),
                jobs = services_.jobs, state = StateFrom(request->state()), drafts = drafts_] {
                 Status status = CheckState(spec, state);
                 if (status.ok()) status = CheckOutsideDataDirectory(*jobs, options.folder);
                 if (!status.ok()) return (void)reply->Finish(status);
                 drafts->RemoveSilent();
                 auto begun =
                     interchange::BeginExport(options, spec, MomentsOf(spec), ForFiles(state));
                 if (!begun.ok()) return (void)reply->Finish(begun.status());
                 const std::string draft = DraftOf(options.folder, begun->draft);
                 const uint64_t owner = OwnerOf(begun->draft);
                 LUWU_CHECK(drafts->Take(draft, owner, std::move(begun->lock)), "its name is new");
                 const bool told = reply->Finish(OkStatus(), [&] {
                   response->set_draft(begun->draft);
                   response->set_bytes(begun->tensor_bytes);
                   response->set_made_folder(begun->made_folder);
                   response->set_operation(owner);
                 });
                 if (told) return;
                 // Nobody knows of the draft whose caller has gone.
                 drafts->GiveUp(draft, owner);
                 (void)interchange::AbandonExport(options.folder, begun->draft, begun->made_folder);
               });
  return reply.get();
}

StatusOr<JobSpec> InterchangeServiceImpl::SpecFor(const v1::BeginExportRequest& request) const {
  RETURN_IF_ERROR(CheckJobName(request.job()));
  if (request.checkpoint().empty()) {
    ASSIGN_OR_RETURN(const auto job, services_.jobs->Find(request.job(), request.epoch()));
    return job->spec();
  }
  ASSIGN_OR_RETURN(StoredPart stored, services_.jobs->FindStored(request.job()));
  return std::move(stored.spec);
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::WriteExport(grpc::CallbackServerContext* context,
                                                              const v1::WriteExportRequest* request,
                                                              v1::WriteExportResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  OpenSource open;
  if (!request->checkpoint().empty()) {
    if (!Admits(reply, *context, *request)) return reply.get();
    open = StoredSource(services_.jobs, *request);
  } else if (auto job = FindJob(reply, *context, *request)) {
    open = LiveSource(std::move(job));
  } else {
    return reply.get();
  }
  ExportPlace place = {
      services_.jobs, std::move(open),
      std::make_unique<ClaimedCall>(drafts_, DraftOf(request->folder(), request->draft()),
                                    OwnerOf(request->draft()))};
  StartRun(services_, reply,
           {runs_, request->operation(), MakeExportWork(std::move(place), *request, response)});
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::FinishExport(
    grpc::CallbackServerContext* context, const v1::FinishExportRequest* request,
    v1::FinishExportResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (!Admits(reply, *context, *request)) return reply.get();
  PostOrRefuse(services_.control_queue, reply, services_,
               [reply, response, drafts = drafts_, request = *request] {
                 if (reply->finished()) return;
                 const ClaimedCall call(drafts, DraftOf(request.folder(), request.draft()),
                                        OwnerOf(request.draft()));
                 const auto names = interchange::FinishExport(request.folder(), request.draft(),
                                                              request.overwrite());
                 reply->Finish(names.status(), [&] {
                   for (const std::string& name : *names) response->add_files(name);
                 });
               });
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::AbandonExport(
    grpc::CallbackServerContext* context, const v1::AbandonExportRequest* request,
    v1::AbandonExportResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (!Admits(reply, *context, *request)) return reply.get();
  PostOrRefuse(
      services_.control_queue, reply, services_, [reply, drafts = drafts_, request = *request] {
        drafts->GiveUp(DraftOf(request.folder(), request.draft()), OwnerOf(request.draft()));
        reply->Finish(
            interchange::AbandonExport(request.folder(), request.draft(), request.made_folder()));
      });
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::GetProgress(grpc::CallbackServerContext* context,
                                                              const v1::GetProgressRequest* request,
                                                              v1::GetProgressResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    imports_->Heard(request->operation());
    drafts_->Heard(request->operation());
    ASSIGN_OR_RETURN(const auto progress, runs_->Find(request->operation()));
    response->set_done_bytes(progress->done_bytes);
    response->set_total_bytes(progress->total_bytes);
    return OkStatus();
  });
}

}  // namespace luwu
