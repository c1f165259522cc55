// One Read stream. A thread of the read queue copies the next pieces of the layer, with the layer's
// updates held back only while it copies, and does not wait for the client: gRPC's threads send
// what was copied, one message after the other, and then ask for more. A stream is in one of these
// two states at a time, so its fields need no lock. A client that takes no data for kReadStallMs is
// cancelled by an alarm; it has held a buffer meanwhile, but no thread and no layer.
//
// Owns itself until gRPC is done with it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include "common/base/sync.h"
#include "luwu/v1/tensors.pb.h"
#include "server/service/service_context.h"

namespace luwu {

// How many streams there are: each has a buffer. Outlives them.
class ReadLimits {
 public:
  // `peer` as gRPC names it; counted by host.
  Status Enter(const std::string& peer) LUWU_EXCLUDES(mutex_);
  void Leave(const std::string& peer) LUWU_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  uint32_t total_ LUWU_GUARDED_BY(mutex_) = 0;
  std::map<std::string, uint32_t> by_host_ LUWU_GUARDED_BY(mutex_);
};

class ReadReactor final : public grpc::ServerWriteReactor<v1::ReadResponse>,
                          public std::enable_shared_from_this<ReadReactor> {
 public:
  static ReadReactor* Start(const ServiceContext& services, ReadLimits* limits,
                            grpc::CallbackServerContext* context, const v1::ReadRequest& request);
  ReadReactor(const ServiceContext& services, grpc::CallbackServerContext* context,
              const v1::ReadRequest& request);

  void OnWriteDone(bool ok) override LUWU_EXCLUDES(mutex_);
  void OnDone() override;

 private:
  void PostFill();
  void Fill();
  Status CopyPieces();
  Status Take(const Job::Piece& piece);
  void Write();
  void OnStall() LUWU_EXCLUDES(mutex_);
  void End(const Status& status) LUWU_EXCLUDES(mutex_);

  const ServiceContext& services_;
  grpc::CallbackServerContext* const context_;
  const v1::ReadRequest request_;
  const std::string peer_;
  const TimePoint deadline_;
  ReadLimits* limits_ = nullptr;  // set while the stream is counted
  std::shared_ptr<ReadReactor> self_;

  std::deque<v1::ReadResponse> copied_;  // the first one belongs to gRPC while it is written
  uint64_t taken_elements_ = 0;
  std::optional<uint64_t> version_;  // of what was copied
  bool full_ = false;
  bool moved_on_ = false;
  bool complete_ = false;
  std::unique_ptr<grpc::Alarm> alarm_;

  Mutex mutex_;
  bool cancelling_ LUWU_GUARDED_BY(mutex_) = false;  // the alarm uses context_
  bool ended_ LUWU_GUARDED_BY(mutex_) = false;
  std::optional<Status> end_ LUWU_GUARDED_BY(mutex_);  // of a stream that ended meanwhile
};

}  // namespace luwu
