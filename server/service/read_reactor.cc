#include "server/service/read_reactor.h"

#include <algorithm>

#include "common/rpc/channel.h"
#include "server/service/tensor_service.h"

namespace luwu {
namespace {

static_assert(int(Quantity::kMaster) == v1::QUANTITY_MASTER);
static_assert(int(Quantity::kMoment1) == v1::QUANTITY_MOMENT1);
static_assert(int(Quantity::kMoment2) == v1::QUANTITY_MOMENT2);

constexpr uint64_t kPieceElementsMax = rpc::kPieceBytesMax / sizeof(float);

}  // namespace

ReadReactor::ReadReactor(const ServiceContext& services, grpc::CallbackServerContext* context,
                         const v1::ReadRequest& request)
    : services_(services),
      context_(context),
      request_(request),
      deadline_(DeadlineOf(*context, request.timeout_ms())) {}

ReadReactor* ReadReactor::Start(const ServiceContext& services,
                                grpc::CallbackServerContext* context,
                                const v1::ReadRequest& request) {
  const auto reactor = std::make_shared<ReadReactor>(services, context, request);
  reactor->self_ = reactor;
  Status status = services.responder.admission->Check();
  if (status.ok() && !services.read_queue->Post([reactor] { reactor->Run(); })) {
    status = Error(ErrorCode::kUnavailable, "node {} has too many reads in progress; try again",
                   services.responder.node);
  }
  if (!status.ok()) reactor->End(status);
  return reactor.get();
}

void ReadReactor::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok) gone_ = true;
  wake_.NotifyAll();
}

void ReadReactor::OnCancel() {
  MutexLock lock(mutex_);
  gone_ = true;
  wake_.NotifyAll();
}

void ReadReactor::Run() {
  Status status = Produce();
  if (status.ok()) status = AwaitTurn();
  if (!status.ok()) {
    // A message that the client does not take would keep the stream open for ever.
    bool stuck = false;
    {
      MutexLock lock(mutex_);
      stuck = writing_;
    }
    if (stuck) context_->TryCancel();
    MutexLock lock(mutex_);
    while (writing_) wake_.Wait(mutex_);  // cancellation ends the write
  }
  End(status);
}

Status ReadReactor::Produce() {
  RETURN_IF_ERROR(services_.responder.admission->Check());
  RETURN_IF_ERROR(CheckJobName(request_.job()));
  if (!v1::Quantity_IsValid(request_.quantity()) ||
      request_.quantity() == v1::QUANTITY_UNSPECIFIED) {
    return Error(ErrorCode::kInvalidArgument,
                 "quantity {} is unknown; ask for master, moment1 or moment2",
                 static_cast<int>(request_.quantity()));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Job> job,
                   services_.jobs->Find(request_.job(), request_.epoch()));
  return job->Read(request_.layer(), static_cast<Quantity>(request_.quantity()), deadline_,
                   [this](const Job::Piece& piece) { return Send(piece); });
}

Status ReadReactor::Send(const Job::Piece& piece) {
  for (uint64_t begin = 0; begin < piece.values.size(); begin += kPieceElementsMax) {
    const uint64_t count = std::min<uint64_t>(kPieceElementsMax, piece.values.size() - begin);
    RETURN_IF_ERROR(AwaitTurn());
    const auto part = piece.values.subspan(begin, count);
    response_.set_shard(piece.shard);
    response_.set_offset(piece.offset + begin);
    response_.set_version(piece.version);
    response_.set_values(part.data(), part.size_bytes());
    {
      MutexLock lock(mutex_);
      writing_ = true;
    }
    StartWrite(&response_);
  }
  return OkStatus();
}

Status ReadReactor::AwaitTurn() {
  const TimePoint limit = std::min(deadline_, DeadlineAfter(kReadStallMs));
  MutexLock lock(mutex_);
  while (writing_ && !gone_) {
    if (!wake_.WaitUntil(mutex_, limit) && writing_ && !gone_) {
      return Error(ErrorCode::kDeadline,
                   "the reader of job {} layer {} took no data in time; read again", request_.job(),
                   request_.layer());
    }
  }
  if (gone_) return Error(ErrorCode::kCancelled, "the reader is gone");
  return OkStatus();
}

void ReadReactor::End(const Status& status) {
  Finish(rpc::ToGrpc(context_, status, services_.responder.node));
}

}  // namespace luwu
