// luwu.v1.InterchangeService: safetensors in and out. Handlers run on gRPC's threads; all that
// touches files runs on the control queue, what is long in slices (long_run.h).
#pragma once

#include "luwu/v1/interchange.grpc.pb.h"
#include "server/service/interchange_claims.h"
#include "server/service/long_run.h"
#include "server/service/service_context.h"

namespace luwu {

class InterchangeServiceImpl final : public v1::InterchangeService::CallbackService {
 public:
  explicit InterchangeServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* BeginImport(grpc::CallbackServerContext* context,
                                        const v1::BeginImportRequest* request,
                                        v1::BeginImportResponse* response) override;
  grpc::ServerUnaryReactor* Import(grpc::CallbackServerContext* context,
                                   const v1::ImportRequest* request,
                                   v1::ImportResponse* response) override;
  grpc::ServerUnaryReactor* FinishImport(grpc::CallbackServerContext* context,
                                         const v1::FinishImportRequest* request,
                                         v1::FinishImportResponse* response) override;
  grpc::ServerUnaryReactor* AbandonImport(grpc::CallbackServerContext* context,
                                          const v1::AbandonImportRequest* request,
                                          v1::AbandonImportResponse* response) override;
  grpc::ServerUnaryReactor* DescribeState(grpc::CallbackServerContext* context,
                                          const v1::DescribeStateRequest* request,
                                          v1::DescribeStateResponse* response) override;
  grpc::ServerUnaryReactor* CheckExport(grpc::CallbackServerContext* context,
                                        const v1::CheckExportRequest* request,
                                        v1::CheckExportResponse* response) override;
  grpc::ServerUnaryReactor* BeginExport(grpc::CallbackServerContext* context,
                                        const v1::BeginExportRequest* request,
                                        v1::BeginExportResponse* response) override;
  grpc::ServerUnaryReactor* WriteExport(grpc::CallbackServerContext* context,
                                        const v1::WriteExportRequest* request,
                                        v1::WriteExportResponse* response) override;
  grpc::ServerUnaryReactor* FinishExport(grpc::CallbackServerContext* context,
                                         const v1::FinishExportRequest* request,
                                         v1::FinishExportResponse* response) override;
  grpc::ServerUnaryReactor* AbandonExport(grpc::CallbackServerContext* context,
                                          const v1::AbandonExportRequest* request,
                                          v1::AbandonExportResponse* response) override;
  grpc::ServerUnaryReactor* GetProgress(grpc::CallbackServerContext* context,
                                        const v1::GetProgressRequest* request,
                                        v1::GetProgressResponse* response) override;

 private:
  // Answers `reply` when the daemon does not take the call.
  bool Admits(const std::shared_ptr<DeferredReply>& reply,
              const grpc::CallbackServerContext& context,
              const google::protobuf::Message& request) const;
  // Refuses `reply` and returns null when the daemon does not serve the job.
  template <typename Request>
  std::shared_ptr<Job> FindJob(const std::shared_ptr<DeferredReply>& reply,
                               const grpc::CallbackServerContext& context,
                               const Request& request) const;
  // Of the job, or of what is stored of it.
  StatusOr<JobSpec> SpecFor(const v1::BeginExportRequest& request) const;

  const ServiceContext services_;
  // A run may be ending when the services are gone already.
  const std::shared_ptr<RunTable> runs_ = std::make_shared<RunTable>();
  const std::shared_ptr<InterchangeClaims> imports_ =
      std::make_shared<InterchangeClaims>();  // by job
  const std::shared_ptr<InterchangeClaims> drafts_ =
      std::make_shared<InterchangeClaims>();  // by path
};

}  // namespace luwu
