// luwu.v1.TensorService: streams masters in and out, in fp32 pieces of at most rpc::kPieceBytesMax.
// Load runs on gRPC's threads (each piece is one copy); FinishLoad on the control queue; Read
// copies on the read queue and sends on gRPC's threads (read_reactor.h). A client that takes no
// data for kReadStallMs ends its read.
#pragma once

#include "luwu/v1/tensors.grpc.pb.h"
#include "server/service/read_reactor.h"
#include "server/service/service_context.h"

namespace luwu {

inline constexpr uint64_t kReadStallMs = 10'000;

class TensorServiceImpl final : public v1::TensorService::CallbackService {
 public:
  explicit TensorServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerReadReactor<v1::LoadRequest>* Load(grpc::CallbackServerContext* context,
                                                 v1::LoadResponse* response) override;
  grpc::ServerUnaryReactor* FinishLoad(grpc::CallbackServerContext* context,
                                       const v1::FinishLoadRequest* request,
                                       v1::FinishLoadResponse* response) override;
  grpc::ServerWriteReactor<v1::ReadResponse>* Read(grpc::CallbackServerContext* context,
                                                   const v1::ReadRequest* request) override;

 private:
  const ServiceContext services_;
  ReadLimits read_limits_;
};

}  // namespace luwu
