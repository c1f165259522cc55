#include "server/service/interchange_service.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "server/interchange/export_folder.h"
#include "server/service/checkpoint_source.h"
#include "server/service/job_tensors.h"

namespace luwu {
namespace {

using interchange::ExportRun;
using interchange::ImportRun;
using interchange::QuotedName;

void FillState(const StartPoint& state, v1::TrainingState* message) {
  message->set_step(state.step);
  message->set_loss_scale(state.loss_scale);
  message->set_finite_run(state.finite_run);
  for (const std::vector<uint64_t>& shards : state.applied) {
    message->add_layers()->mutable_shards()->Add(shards.begin(), shards.end());
  }
}

StartPoint StateFrom(const v1::TrainingState& message) {
  StartPoint state;
  state.step = message.step();
  state.loss_scale = message.loss_scale();
  state.finite_run = message.finite_run();
  for (const v1::LayerUpdates& layer : message.layers()) {
    state.applied.emplace_back(layer.shards().begin(), layer.shards().end());
  }
  return state;
}

class ImportWork final : public LongWork {
 public:
  ImportWork(std::shared_ptr<Job> job, const v1::ImportRequest& request,
             v1::ImportResponse* response)
      : target_(std::move(job)), response_(response) {
    options_.path = request.path();
    options_.allow_missing = request.allow_missing();
    options_.allow_unexpected = request.allow_unexpected();
    options_.optimizer_state = request.optimizer_state();
  }

  Status Open(RunProgress* progress) override {
    ASSIGN_OR_RETURN(run_, ImportRun::Open(options_, &target_));
    progress->total_bytes = run_->total_bytes();
    if (!options_.optimizer_state) return OkStatus();
    ASSIGN_OR_RETURN(interchange::TrainingState state,
                     interchange::ParseTrainingState(
                         target_.spec(), run_->optimizer_files()->metadata(), options_.path));
    state_ = {state.step, state.loss_scale, state.finite_run, std::move(state.applied)};
    return OkStatus();
  }
  StatusOr<bool> Step(RunProgress* progress) override {
    StatusOr<bool> done = run_->Step();
    progress->done_bytes = run_->done_bytes();
    return done;
  }
  void Answer() override {
    response_->set_bytes(run_->done_bytes());
    response_->set_fingerprint(run_->fingerprint());
    if (options_.optimizer_state) FillState(state_, response_->mutable_state());
  }

 private:
  JobTarget target_;
  interchange::ImportOptions options_;
  v1::ImportResponse* const response_;
  std::unique_ptr<ImportRun> run_;
  StartPoint state_;
};

// What an export reads; opened when the run begins.
using OpenSource = std::function<StatusOr<std::unique_ptr<interchange::TensorSource>>()>;

StatusOr<std::unique_ptr<CheckpointSource>> OpenCheckpoint(const JobRegistry& jobs,
                                                           const std::string& job,
                                                           const std::string& name) {
  RETURN_IF_ERROR(CheckJobName(job));
  ASSIGN_OR_RETURN(StoredPart stored, jobs.FindStored(job));
  CheckpointPlace place;
  place.spec = std::move(stored.spec);
  place.storage = std::move(stored.storage);
  place.nodes = jobs.nodes();
  place.self = jobs.self();
  place.name = name;
  StatusOr<std::unique_ptr<CheckpointSource>> source = CheckpointSource::Open(std::move(place));
  if (CodeOf(source.status()) != ErrorCode::kNotFound) return source;
  return Error(ErrorCode::kNotFound, "job '{}' has no checkpoint {} on node {}", job,
               QuotedName(name), jobs.node_name());
}

StatusOr<std::unique_ptr<interchange::TensorSource>> OpenLive(const std::shared_ptr<Job>& job) {
  RETURN_IF_ERROR(CheckExportable(*job));
  return std::make_unique<JobSource>(job);
}

StatusOr<std::unique_ptr<interchange::TensorSource>> OpenStored(
    const JobRegistry& jobs, const v1::WriteExportRequest& request) {
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointSource> source,
                   OpenCheckpoint(jobs, request.job(), request.checkpoint()));
  const persist::Point& point = source->point();
  if (point.step != request.step() || point.epoch != request.point_epoch()) {
    return Error(ErrorCode::kState,
                 "checkpoint {} of job '{}' is another one than when the export began, of step {} "
                 "now and {} then; export again",
                 QuotedName(request.checkpoint()), request.job(), point.step, request.step());
  }
  return source;
}

// Files of others in a data directory count as damage of it when it is opened again, and fill a
// file system that state needs.
Status CheckOutsideDataDirectory(const JobRegistry& jobs, const std::string& folder) {
  const std::string data = jobs.storage_path();
  if (data.empty()) return OkStatus();
  std::error_code error;
  const auto canonical = [&error](const std::string& path) {
    return (std::filesystem::weakly_canonical(path, error) / "").lexically_normal();
  };
  const std::filesystem::path inner = canonical(folder);
  const std::filesystem::path outer = canonical(data);
  if (error) return OkStatus();  // the export itself says what is wrong with the path
  const auto [rest, unused] =
      std::mismatch(outer.begin(), std::prev(outer.end()), inner.begin(), inner.end());
  if (rest != std::prev(outer.end())) return OkStatus();
  return Error(
      ErrorCode::kInvalidArgument,
      "'{}' is in the data directory of node {} ({}), which is the daemon's own; export to "
      "a folder outside of it",
      folder, jobs.node_name(), data);
}

class ExportWork final : public LongWork {
 public:
  ExportWork(const JobRegistry* jobs, OpenSource open, const v1::WriteExportRequest& request,
             v1::WriteExportResponse* response)
      : jobs_(jobs), open_(std::move(open)), request_(request), response_(response) {}

  Status Open(RunProgress* progress) override {
    RETURN_IF_ERROR(CheckOutsideDataDirectory(*jobs_, request_.folder()));
    ASSIGN_OR_RETURN(source_, open_());
    interchange::ExportRunOptions options;
    ASSIGN_OR_RETURN(options.draft_path,
                     interchange::DraftPath(request_.folder(), request_.draft()));
    options.optimizer_state = request_.optimizer_state();
    options.step = request_.step();
    ASSIGN_OR_RETURN(run_, ExportRun::Open(options, source_.get()));
    progress->total_bytes = run_->total_bytes();
    return OkStatus();
  }
  StatusOr<bool> Step(RunProgress* progress) override {
    StatusOr<bool> done = run_->Step();
    progress->done_bytes = run_->done_bytes();
    return done;
  }
  void Answer() override { response_->set_bytes(run_->done_bytes()); }

 private:
  const JobRegistry* const jobs_;
  const OpenSource open_;
  const v1::WriteExportRequest request_;
  v1::WriteExportResponse* const response_;
  std::unique_ptr<interchange::TensorSource> source_;
  std::unique_ptr<ExportRun> run_;
};

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

Status FinishLoad(const ServiceContext& services, Job& job,
                  const v1::FinishImportRequest& request) {
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

grpc::ServerUnaryReactor* InterchangeServiceImpl::Import(grpc::CallbackServerContext* context,
                                                         const v1::ImportRequest* request,
                                                         v1::ImportResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (auto job = FindJob(reply, *context, *request)) {
    StartRun(services_, reply,
             {runs_, request->operation(),
              std::make_unique<ImportWork>(std::move(job), *request, response)});
  }
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::FinishImport(
    grpc::CallbackServerContext* context, const v1::FinishImportRequest* request,
    v1::FinishImportResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (auto job = FindJob(reply, *context, *request)) {
    PostOrRefuse(services_.control_queue, reply, services_,
                 [services = services_, reply, job, request = *request] {
                   reply->Finish(FinishLoad(services, *job, request));
                 });
  }
  return reply.get();
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
                jobs = services_.jobs, state = StateFrom(request->state())] {
                 Status status = CheckState(spec, state);
                 if (status.ok()) status = CheckOutsideDataDirectory(*jobs, options.folder);
                 if (!status.ok()) return (void)reply->Finish(status);
                 const auto begun =
                     interchange::BeginExport(options, spec, MomentsOf(spec), ForFiles(state));
                 const bool told = reply->Finish(begun.status(), [&] {
                   response->set_draft(begun->draft);
                   response->set_bytes(begun->tensor_bytes);
                 });
                 // Nobody knows of the draft whose caller has gone.
                 if (told || !begun.ok()) return;
                 (void)interchange::AbandonExport(options.folder, begun->draft);
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
    open = [jobs = services_.jobs, request = *request] { return OpenStored(*jobs, request); };
  } else if (auto job = FindJob(reply, *context, *request)) {
    open = [job = std::move(job)] { return OpenLive(job); };
  } else {
    return reply.get();
  }
  StartRun(services_, reply,
           {runs_, request->operation(),
            std::make_unique<ExportWork>(services_.jobs, std::move(open), *request, response)});
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::FinishExport(
    grpc::CallbackServerContext* context, const v1::FinishExportRequest* request,
    v1::FinishExportResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (!Admits(reply, *context, *request)) return reply.get();
  PostOrRefuse(services_.control_queue, reply, services_, [reply, response, request = *request] {
    if (reply->finished()) return;
    const auto names =
        interchange::FinishExport(request.folder(), request.draft(), request.overwrite());
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
  PostOrRefuse(services_.control_queue, reply, services_, [reply, request = *request] {
    reply->Finish(interchange::AbandonExport(request.folder(), request.draft()));
  });
  return reply.get();
}

grpc::ServerUnaryReactor* InterchangeServiceImpl::GetProgress(grpc::CallbackServerContext* context,
                                                              const v1::GetProgressRequest* request,
                                                              v1::GetProgressResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto progress, runs_->Find(request->operation()));
    response->set_done_bytes(progress->done_bytes);
    response->set_total_bytes(progress->total_bytes);
    return OkStatus();
  });
}

}  // namespace luwu
