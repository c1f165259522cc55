// One Read stream. Run() is the producer, on a thread of the read queue: it walks the layer's
// pieces and blocks while the client has not taken the one before. gRPC's threads report what the
// client did. Owns itself until gRPC is done with it.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/support/server_callback.h>

#include "common/base/sync.h"
#include "luwu/v1/tensors.pb.h"
#include "server/service/service_context.h"

namespace luwu {

class ReadReactor final : public grpc::ServerWriteReactor<v1::ReadResponse> {
 public:
  static ReadReactor* Start(const ServiceContext& services, grpc::CallbackServerContext* context,
                            const v1::ReadRequest& request);
  ReadReactor(const ServiceContext& services, grpc::CallbackServerContext* context,
              const v1::ReadRequest& request);

  void OnWriteDone(bool ok) override LUWU_EXCLUDES(mutex_);
  void OnCancel() override LUWU_EXCLUDES(mutex_);
  void OnDone() override { const std::shared_ptr<ReadReactor> last = std::move(self_); }

 private:
  void Run() LUWU_EXCLUDES(mutex_);
  Status Produce() LUWU_EXCLUDES(mutex_);
  Status Send(const Job::Piece& piece) LUWU_EXCLUDES(mutex_);
  // Waits until the message before has left; the client's silence or absence is an error.
  Status AwaitTurn() LUWU_EXCLUDES(mutex_);
  void End(const Status& status);

  const ServiceContext& services_;
  grpc::CallbackServerContext* const context_;
  const v1::ReadRequest request_;
  const TimePoint deadline_;
  std::shared_ptr<ReadReactor> self_;
  v1::ReadResponse response_;  // belongs to gRPC while writing_

  Mutex mutex_;
  CondVar wake_;
  bool writing_ LUWU_GUARDED_BY(mutex_) = false;
  bool gone_ LUWU_GUARDED_BY(mutex_) = false;
};

}  // namespace luwu
