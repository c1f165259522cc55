// One Load stream: every piece is checked and copied into the masters as it arrives. The first bad
// piece ends the stream with its error. Owns itself until gRPC is done with it; gRPC's threads.
#pragma once

#include <memory>
#include <vector>

#include <grpcpp/support/server_callback.h>

#include "luwu/v1/tensors.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class LoadReactor final : public grpc::ServerReadReactor<v1::LoadRequest> {
 public:
  static LoadReactor* Start(const ServiceContext& services, grpc::CallbackServerContext* context,
                            v1::LoadResponse* response);
  LoadReactor(const ServiceContext& services, grpc::CallbackServerContext* context,
              v1::LoadResponse* response)
      : services_(services), context_(context), response_(response) {}

  void OnReadDone(bool ok) override;
  void OnDone() override { const std::shared_ptr<LoadReactor> last = std::move(self_); }

 private:
  Status Take(const v1::LoadRequest& request);
  void End(const Status& status);

  const ServiceContext& services_;
  grpc::CallbackServerContext* const context_;
  v1::LoadResponse* const response_;
  std::shared_ptr<LoadReactor> self_;
  v1::LoadRequest request_;
  SessionAndJob loader_;       // of the first piece
  std::vector<float> values_;  // the piece, aligned
};

}  // namespace luwu
