// luwu.v1.DoctorService: the daemon examines its host, its data directory and its way to the other
// nodes. On the read queue, whose threads may wait; the clock is answered on gRPC's.
#pragma once

#include "luwu/v1/doctor.grpc.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class DoctorServiceImpl final : public v1::DoctorService::CallbackService {
 public:
  explicit DoctorServiceImpl(const ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* Diagnose(grpc::CallbackServerContext* context,
                                     const v1::DiagnoseRequest* request,
                                     v1::DiagnoseResponse* response) override;
  grpc::ServerUnaryReactor* ReadClock(grpc::CallbackServerContext* context,
                                      const v1::ReadClockRequest* request,
                                      v1::ReadClockResponse* response) override;

 private:
  const ServiceContext services_;
};

}  // namespace luwu
