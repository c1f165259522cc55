#include "server/service/lead_call.h"

#include <algorithm>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"

namespace luwu {
namespace {

constexpr uint64_t kAnswerMarginMs = 2'000;  // beyond the time the lead was given
constexpr uint64_t kPauseMinMs = 50;
constexpr uint64_t kPauseMaxMs = 1'000;

}  // namespace

void LeadCall::Send() {
  MutexLock lock(mutex_);
  if (done_ == nullptr) return;
  context_ = std::make_unique<grpc::ClientContext>();
  rpc::SetTimeout(context_.get(), options_.wait_ms + kAnswerMarginMs);
  attempt_(context_.get(),
           [self = shared_from_this()](const grpc::Status& status) { self->OnAnswer(status); });
}

void LeadCall::Cancel(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (done_ == nullptr) return;
    if (context_ != nullptr) context_->TryCancel();
    if (alarm_ != nullptr) alarm_->Cancel();
  }
  End(why);
}

bool LeadCall::ended() const {
  MutexLock lock(mutex_);
  return done_ == nullptr;
}

void LeadCall::End(const Status& result) {
  Done done;
  {
    MutexLock lock(mutex_);
    done.swap(done_);
  }
  if (done != nullptr) done(result);
}

void LeadCall::OnAnswer(const grpc::Status& grpc_status) {
  if (grpc_status.ok()) {
    End(OkStatus());
    return;
  }
  const Status status = rpc::FromGrpc(grpc_status, *context_);
  const bool answered = !rpc::NodeOfError(*context_).empty();
  const ErrorCode code = CodeOf(status);
  if (answered && code == ErrorCode::kDeadline) {  // it waits for other nodes
    silent_since_.reset();
    pause_ms_ = kPauseMinMs;
    Send();
    return;
  }
  if (answered && code != ErrorCode::kUnavailable) {
    End(Refusal(status));
    return;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  if (!silent_since_) silent_since_ = now;
  if (now - *silent_since_ >= Milliseconds(options_.give_up_ms)) {
    End(Error(ErrorCode::kNodeLost,
              "the lead node {} ({}) of job {} has not answered for {} ms: {}; restart it",
              options_.lead_name, options_.lead_address, options_.job, options_.give_up_ms,
              MessageOf(status)));
    return;
  }
  Pause();
}

void LeadCall::Pause() {
  pause_ms_ = std::max(pause_ms_, kPauseMinMs);
  const uint64_t pause_ms = pause_ms_;
  pause_ms_ = std::min(2 * pause_ms_, kPauseMaxMs);
  MutexLock lock(mutex_);
  if (done_ == nullptr) return;
  // A new one each time: the former may still be returning from its call.
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + Milliseconds(pause_ms),
              [self = shared_from_this()](bool) mutable {
                // The alarm keeps its function, and this call its alarm: let go of one.
                const std::shared_ptr<LeadCall> call = std::move(self);
                call->Send();
              });
}

// A lead that answers but does not know the job has been restarted, and its slice of the state was
// not stored.
Status LeadCall::Refusal(const Status& status) const {
  const ErrorCode code = CodeOf(status);
  if (code != ErrorCode::kNotFound && code != ErrorCode::kStaleEpoch) return status;
  return Error(ErrorCode::kNodeLost,
               "the lead node {} has lost job {}: {}; delete the job on all nodes and start again",
               options_.lead_name, options_.job, MessageOf(status));
}

}  // namespace luwu
