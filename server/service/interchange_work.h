// What the daemon does for one Import or WriteExport: files, a job or a stored checkpoint, and a
// claim (claims.h), put together as long work (long_run.h); and the messages that go with it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "luwu/v1/interchange.pb.h"
#include "server/interchange/export_run.h"
#include "server/service/checkpoint_source.h"
#include "server/service/interchange_claims.h"
#include "server/service/job_registry.h"
#include "server/service/long_run.h"
#include "server/step/job.h"

namespace luwu {

// A call in progress of whoever has the claim, if anybody has. Not moved.
class ClaimedCall {
 public:
  ClaimedCall(std::shared_ptr<InterchangeClaims> claims, std::string key, uint64_t owner)
      : claims_(std::move(claims)),
        key_(std::move(key)),
        owner_(owner),
        begun_(claims_->BeginCall(key_, owner_)) {}
  ClaimedCall(const ClaimedCall&) = delete;
  ClaimedCall& operator=(const ClaimedCall&) = delete;
  ~ClaimedCall() {
    if (begun_) claims_->EndCall(key_, owner_, keep_);
  }
  bool begun() const { return begun_; }
  void Keep() { keep_ = true; }  // else the claim ends with the call

 private:
  const std::shared_ptr<InterchangeClaims> claims_;
  const std::string key_;
  const uint64_t owner_;
  const bool begun_;
  bool keep_ = false;
};

void FillState(const StartPoint& state, v1::TrainingState* message);
StartPoint StateFrom(const v1::TrainingState& message);

std::unique_ptr<LongWork> MakeImportWork(std::shared_ptr<Job> job,
                                         std::unique_ptr<ClaimedCall> call,
                                         const v1::ImportRequest& request,
                                         v1::ImportResponse* response);

// What an export reads; opened when the run begins.
using OpenSource = std::function<StatusOr<std::unique_ptr<interchange::TensorSource>>()>;
OpenSource LiveSource(std::shared_ptr<Job> job);
OpenSource StoredSource(const JobRegistry* jobs, const v1::WriteExportRequest& request);
StatusOr<std::unique_ptr<CheckpointSource>> OpenCheckpoint(const JobRegistry& jobs,
                                                           const std::string& job,
                                                           const std::string& name);

struct ExportPlace {
  const JobRegistry* jobs = nullptr;
  OpenSource open;
  std::unique_ptr<ClaimedCall> call;
};
std::unique_ptr<LongWork> MakeExportWork(ExportPlace place, const v1::WriteExportRequest& request,
                                         v1::WriteExportResponse* response);

// kInvalidArgument when an export to `folder` would go into this node's data directory.
Status CheckOutsideDataDirectory(const JobRegistry& jobs, const std::string& folder);

}  // namespace luwu
