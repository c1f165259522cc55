#include "server/service/interchange_work.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "server/interchange/export_draft.h"
#include "server/interchange/import_run.h"
#include "server/interchange/training_state.h"
#include "server/service/job_tensors.h"
#include "server/service/stored_job.h"

namespace luwu {
namespace {

using interchange::ExportRun;
using interchange::ImportRun;
using interchange::QuotedName;

class ImportWork final : public LongWork {
 public:
  ImportWork(std::shared_ptr<Job> job, std::unique_ptr<ClaimedCall> call,
             const v1::ImportRequest& request, v1::ImportResponse* response)
      : call_(std::move(call)), target_(std::move(job)), response_(response) {
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
    call_->Keep();
    response_->set_bytes(run_->done_bytes());
    response_->set_fingerprint(run_->fingerprint());
    if (options_.optimizer_state) FillState(state_, response_->mutable_state());
  }

 private:
  const std::unique_ptr<ClaimedCall> call_;
  JobTarget target_;
  interchange::ImportOptions options_;
  v1::ImportResponse* const response_;
  std::unique_ptr<ImportRun> run_;
  StartPoint state_;
};

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

class ExportWork final : public LongWork {
 public:
  ExportWork(ExportPlace place, const v1::WriteExportRequest& request,
             v1::WriteExportResponse* response)
      : place_(std::move(place)), request_(request), response_(response) {}

  Status Open(RunProgress* progress) override {
    RETURN_IF_ERROR(CheckOutsideDataDirectory(*place_.jobs, request_.folder()));
    ASSIGN_OR_RETURN(source_, place_.open());
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
  void Answer() override {
    place_.call->Keep();
    response_->set_bytes(run_->done_bytes());
  }

 private:
  const ExportPlace place_;
  const v1::WriteExportRequest request_;
  v1::WriteExportResponse* const response_;
  std::unique_ptr<interchange::TensorSource> source_;
  std::unique_ptr<ExportRun> run_;
};

}  // namespace

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

std::unique_ptr<LongWork> MakeImportWork(std::shared_ptr<Job> job,
                                         std::unique_ptr<ClaimedCall> call,
                                         const v1::ImportRequest& request,
                                         v1::ImportResponse* response) {
  return std::make_unique<ImportWork>(std::move(job), std::move(call), request, response);
}

OpenSource LiveSource(std::shared_ptr<Job> job) {
  return [job = std::move(job)] { return OpenLive(job); };
}

OpenSource StoredSource(const JobRegistry* jobs, const v1::WriteExportRequest& request) {
  return [jobs, request] { return OpenStored(*jobs, request); };
}

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

std::unique_ptr<LongWork> MakeExportWork(ExportPlace place, const v1::WriteExportRequest& request,
                                         v1::WriteExportResponse* response) {
  return std::make_unique<ExportWork>(std::move(place), request, response);
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

}  // namespace luwu
