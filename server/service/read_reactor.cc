#include "server/service/read_reactor.h"

#include <algorithm>
#include <utility>

#include "common/rpc/channel.h"
#include "server/service/tensor_service.h"

namespace luwu {
namespace {

static_assert(int(Quantity::kMaster) == v1::QUANTITY_MASTER);
static_assert(int(Quantity::kMoment1) == v1::QUANTITY_MOMENT1);
static_assert(int(Quantity::kMoment2) == v1::QUANTITY_MOMENT2);
static_assert(int(Quantity::kMoment3) == v1::QUANTITY_MOMENT3);

constexpr size_t kMessagesCopiedMax = 16;  // of 256 KiB: a stream's buffer
constexpr uint32_t kStreamsMax = 64;
constexpr uint32_t kStreamsPerHostMax = 16;
// How long a thread waits for an update before it looks after other streams.
constexpr uint64_t kUpdateWaitMs = 100;

// "ipv4:10.0.0.1:4242" without its port.
std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

Status ReadLimits::Enter(const std::string& peer) {
  MutexLock lock(mutex_);
  uint32_t& of_host = by_host_[HostOf(peer)];
  if (total_ >= kStreamsMax || of_host >= kStreamsPerHostMax) {
    return Error(ErrorCode::kUnavailable,
                 "{} reads are in progress, {} of them from your host; at most {} and {} are "
                 "possible: finish one and try again",
                 total_, of_host, kStreamsMax, kStreamsPerHostMax);
  }
  ++total_;
  ++of_host;
  return OkStatus();
}

void ReadLimits::Leave(const std::string& peer) {
  MutexLock lock(mutex_);
  --total_;
  const auto host = by_host_.find(HostOf(peer));
  if (--host->second == 0) by_host_.erase(host);
}

ReadReactor::ReadReactor(const ServiceContext& services, grpc::CallbackServerContext* context,
                         const v1::ReadRequest& request)
    : services_(services),
      context_(context),
      request_(request),
      peer_(context->peer()),
      deadline_(DeadlineOf(*context, request.timeout_ms())) {}

ReadReactor* ReadReactor::Start(const ServiceContext& services, ReadLimits* limits,
                                grpc::CallbackServerContext* context,
                                const v1::ReadRequest& request) {
  const auto reactor = std::make_shared<ReadReactor>(services, context, request);
  reactor->self_ = reactor;
  Status status = Admit(services, *context, request);
  if (status.ok()) status = limits->Enter(reactor->peer_);
  if (!status.ok()) {
    reactor->End(status);
    return reactor.get();
  }
  reactor->limits_ = limits;
  reactor->PostFill();
  return reactor.get();
}

void ReadReactor::OnDone() {
  if (limits_ != nullptr) limits_->Leave(peer_);
  const std::shared_ptr<ReadReactor> last = std::move(self_);
}

void ReadReactor::PostFill() {
  if (services_.read_queue->Post([self = shared_from_this()] { self->Fill(); })) return;
  End(Error(ErrorCode::kUnavailable, "node {} has too many reads in progress; try again",
            services_.responder.node));
}

void ReadReactor::Fill() {
  if (context_->IsCancelled()) return End(Error(ErrorCode::kCancelled, "the reader is gone"));
  const Status status = CopyPieces();
  if (!copied_.empty()) return Write();
  if (status.ok()) return End(OkStatus());
  // The layer is being updated, and there is time left: wait, but not on this thread.
  if (CodeOf(status) == ErrorCode::kDeadline && MillisecondsUntil(deadline_) > 0) return PostFill();
  End(status);
}

// OK with nothing copied: the layer is at its end.
Status ReadReactor::CopyPieces() {
  if (complete_) return OkStatus();
  RETURN_IF_ERROR(services_.responder.admission->Check());
  RETURN_IF_ERROR(CheckJobName(request_.job()));
  if (!v1::Quantity_IsValid(request_.quantity()) ||
      request_.quantity() == v1::QUANTITY_UNSPECIFIED) {
    return Error(ErrorCode::kInvalidArgument,
                 "quantity {} is unknown; ask for master, moment1, moment2 or moment3",
                 static_cast<int>(request_.quantity()));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Job> job,
                   services_.jobs->Find(request_.job(), request_.epoch()));
  const Job::ReadPlace place = {request_.layer(), static_cast<Quantity>(request_.quantity()),
                                taken_elements_};
  full_ = false;
  const Status status = job->Read(place, std::min(deadline_, DeadlineAfter(kUpdateWaitMs)),
                                  [this](const Job::Piece& piece) { return Take(piece); });
  if (full_) return OkStatus();
  if (moved_on_) {
    copied_.clear();
    return status;
  }
  complete_ = status.ok();
  return status;
}

Status ReadReactor::Take(const Job::Piece& piece) {
  if (version_.value_or(piece.version) != piece.version) {
    moved_on_ = true;
    return Error(ErrorCode::kState,
                 "layer {} of job {} went from version {} to {} while it was being read; read it "
                 "again, between two steps",
                 request_.layer(), request_.job(), *version_, piece.version);
  }
  if (copied_.size() >= kMessagesCopiedMax) {
    full_ = true;
    return Error(ErrorCode::kCancelled, "the buffer is full");
  }
  version_ = piece.version;
  v1::ReadResponse& message = copied_.emplace_back();
  message.set_shard(piece.shard);
  message.set_offset(piece.offset);
  message.set_version(piece.version);
  message.set_values(piece.values.data(), piece.values.size_bytes());
  taken_elements_ += piece.values.size();
  return OkStatus();
}

void ReadReactor::Write() {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + Milliseconds(kReadStallMs),
              [weak = weak_from_this()](bool expired) {
                const std::shared_ptr<ReadReactor> self = expired ? weak.lock() : nullptr;
                if (self != nullptr) self->OnStall();
              });
  StartWrite(&copied_.front());
}

void ReadReactor::OnWriteDone(bool ok) {
  alarm_->Cancel();
  copied_.pop_front();
  if (!ok) return End(Error(ErrorCode::kCancelled, "the reader is gone, or took no data in time"));
  if (!copied_.empty()) return Write();
  if (complete_) return End(OkStatus());
  PostFill();
}

// Cancellation ends the write. An alarm that is late may hit a later write: then its client was
// slow before, and may read again.
void ReadReactor::OnStall() {
  {
    MutexLock lock(mutex_);
    if (ended_ || cancelling_) return;
    cancelling_ = true;
  }
  context_->TryCancel();
  std::optional<Status> end;
  {
    MutexLock lock(mutex_);
    cancelling_ = false;
    end.swap(end_);
  }
  if (end) End(*end);
}

// Finish may free the context.
void ReadReactor::End(const Status& status) {
  {
    MutexLock lock(mutex_);
    if (cancelling_) {
      end_ = status;
      return;
    }
    ended_ = true;
  }
  Finish(rpc::ToGrpc(context_, status, services_.responder.node));
}

}  // namespace luwu
