#include "server/service/peer_reporter.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <utility>

#include <grpcpp/alarm.h>

#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/peers.grpc.pb.h"
#include "server/service/peer_service.h"

namespace luwu {
namespace {

constexpr uint64_t kAnswerMarginMs = 2'000;  // beyond the time the lead was given
constexpr uint64_t kPauseMinMs = 50;
constexpr uint64_t kPauseMaxMs = 1'000;

void SetFindings(const StepFindings& findings, v1::ReportStepRequest* request) {
  request->set_non_finite(findings.non_finite.substr(0, kNonFiniteTextMax));
  request->mutable_norm_limits()->Add(findings.norm_limits.begin(), findings.norm_limits.end());
  for (uint32_t unit = 0; unit < findings.squares.size() && findings.non_finite.empty(); ++unit) {
    if (findings.squares[unit].IsZero()) continue;
    v1::UnitSquares* squares = request->add_squares();
    squares->set_unit(unit);
    squares->set_sum(findings.squares[unit].Serialize());
  }
}

// One report until its decision. Kept alive by the RPC or the alarm that is outstanding.
class PendingReport : public std::enable_shared_from_this<PendingReport> {
 public:
  PendingReport(const PeerReporterOptions& options, uint64_t step, const StepFindings& findings,
                DecisionCallback done)
      : options_(options),
        stub_(v1::PeerService::NewStub(options.channel)),
        done_(std::move(done)) {
    request_.set_job(options.job);
    request_.set_epoch(options.epoch);
    request_.set_step(step);
    request_.set_node(options.self);
    SetFindings(findings, &request_);
    request_.set_nodes_fingerprint(options.nodes_fingerprint);
    request_.set_timeout_ms(options.wait_ms);
  }

  void Send() LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (done_ == nullptr) return;
    context_ = std::make_unique<grpc::ClientContext>();
    rpc::SetTimeout(context_.get(), options_.wait_ms + kAnswerMarginMs);
    stub_->async()->ReportStep(
        context_.get(), &request_, &response_,
        [self = shared_from_this()](grpc::Status status) { self->OnAnswer(status); });
  }

  // Ends the report unless it has ended.
  void Cancel(const Status& why) LUWU_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (done_ == nullptr) return;
      if (context_ != nullptr) context_->TryCancel();
      if (alarm_ != nullptr) alarm_->Cancel();
    }
    End(why);
  }

  bool ended() const LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return done_ == nullptr;
  }

 private:
  void End(StatusOr<StepDecision> result) LUWU_EXCLUDES(mutex_) {
    DecisionCallback done;
    {
      MutexLock lock(mutex_);
      done.swap(done_);
    }
    if (done != nullptr) done(std::move(result));
  }

  void OnAnswer(const grpc::Status& grpc_status) LUWU_EXCLUDES(mutex_) {
    if (grpc_status.ok()) {
      End(DecisionOf(response_));
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

  void Pause() LUWU_EXCLUDES(mutex_) {
    const uint64_t pause_ms = pause_ms_;
    pause_ms_ = std::min(2 * pause_ms_, kPauseMaxMs);
    MutexLock lock(mutex_);
    if (done_ == nullptr) return;
    // A new one each time: the former may still be returning from its call.
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + Milliseconds(pause_ms),
                [self = shared_from_this()](bool) mutable {
                  // The alarm keeps its function, and this report its alarm: let go of one.
                  const std::shared_ptr<PendingReport> report = std::move(self);
                  report->Send();
                });
  }

  // A lead that answers but does not know the job has been restarted: its slice of the state is
  // gone.
  Status Refusal(const Status& status) const {
    const ErrorCode code = CodeOf(status);
    if (code != ErrorCode::kNotFound && code != ErrorCode::kStaleEpoch) return status;
    return Error(
        ErrorCode::kNodeLost,
        "the lead node {} has lost job {}: {}; delete the job on all nodes and start again",
        options_.lead_name, options_.job, MessageOf(status));
  }

  StatusOr<StepDecision> DecisionOf(const v1::ReportStepResponse& response) const {
    const bool fits = std::isnormal(response.next_loss_scale()) && response.next_loss_scale() > 0 &&
                      std::all_of(response.factors().begin(), response.factors().end(),
                                  [](double factor) { return factor >= 0 && factor <= 1; });
    if (!fits || !v1::Outcome_IsValid(response.outcome()) ||
        response.outcome() == v1::OUTCOME_UNSPECIFIED) {
      return Error(ErrorCode::kInternal,
                   "the lead node {} answered with outcome {}, loss scale {} and {} clip factors; "
                   "use daemons of one version",
                   options_.lead_name, static_cast<int>(response.outcome()),
                   response.next_loss_scale(), response.factors_size());
    }
    return StepDecision{.outcome = static_cast<Outcome>(response.outcome()),
                        .culprit = response.culprit(),
                        .grad_norm = response.grad_norm(),
                        .factors = {response.factors().begin(), response.factors().end()},
                        .next_loss_scale = response.next_loss_scale()};
  }

  const PeerReporterOptions options_;
  const std::unique_ptr<v1::PeerService::Stub> stub_;
  v1::ReportStepRequest request_;
  v1::ReportStepResponse response_;
  // One attempt or pause at a time touches these.
  std::optional<TimePoint> silent_since_;
  uint64_t pause_ms_ = kPauseMinMs;

  mutable Mutex mutex_;
  DecisionCallback done_ LUWU_GUARDED_BY(mutex_);  // null: ended
  std::unique_ptr<grpc::ClientContext> context_;   // replaced under the lock, by Send only
  std::unique_ptr<grpc::Alarm> alarm_ LUWU_GUARDED_BY(mutex_);
};

class PeerReporter final : public StepReporter {
 public:
  explicit PeerReporter(PeerReporterOptions options) : options_(std::move(options)) {}
  ~PeerReporter() override {
    std::list<std::shared_ptr<PendingReport>> pending;
    {
      MutexLock lock(mutex_);
      pending.swap(pending_);
    }
    for (const auto& report : pending) {
      report->Cancel(Error(ErrorCode::kCancelled, "job {} has ended", options_.job));
    }
  }

  void Report(uint64_t step, const StepFindings& findings, DecisionCallback done) override {
    const auto report = std::make_shared<PendingReport>(options_, step, findings, std::move(done));
    {
      MutexLock lock(mutex_);
      pending_.remove_if([](const auto& former) { return former->ended(); });
      pending_.push_back(report);
    }
    report->Send();
  }

 private:
  const PeerReporterOptions options_;
  Mutex mutex_;
  std::list<std::shared_ptr<PendingReport>> pending_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<StepReporter> MakePeerReporter(PeerReporterOptions options) {
  return std::make_unique<PeerReporter>(std::move(options));
}

}  // namespace luwu
