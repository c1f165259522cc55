#include "server/service/peer_reporter.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <utility>

#include "common/base/sync.h"
#include "luwu/v1/peers.grpc.pb.h"
#include "server/service/lead_call.h"
#include "server/service/peer_service.h"

namespace luwu {
namespace {

// Request and answer of a call; lives as long as its attempts.
template <typename Request, typename Response>
struct Messages {
  explicit Messages(const std::shared_ptr<grpc::Channel>& channel)
      : stub(v1::PeerService::NewStub(channel)) {}

  const std::unique_ptr<v1::PeerService::Stub> stub;
  Request request;
  Response response;
};

template <typename Request>
void SetCaller(const PeerReporterOptions& options, uint64_t step, Request* request) {
  request->set_job(options.job);
  request->set_epoch(options.epoch);
  request->set_step(step);
  request->set_node(options.self);
  request->set_nodes_fingerprint(options.nodes_fingerprint);
  request->set_timeout_ms(options.wait_ms);
}

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

StatusOr<StepDecision> DecisionOf(const v1::ReportStepResponse& response,
                                  const std::string& lead_name) {
  const bool fits = std::isnormal(response.next_loss_scale()) && response.next_loss_scale() > 0 &&
                    std::all_of(response.factors().begin(), response.factors().end(),
                                [](double factor) { return factor >= 0 && factor <= 1; });
  if (!fits || !v1::Outcome_IsValid(response.outcome()) ||
      response.outcome() == v1::OUTCOME_UNSPECIFIED) {
    return Error(ErrorCode::kInternal,
                 "the lead node {} answered with outcome {}, loss scale {} and {} clip factors; "
                 "use daemons of one version",
                 lead_name, static_cast<int>(response.outcome()), response.next_loss_scale(),
                 response.factors_size());
  }
  return StepDecision{.outcome = static_cast<Outcome>(response.outcome()),
                      .culprit = response.culprit(),
                      .grad_norm = response.grad_norm(),
                      .factors = {response.factors().begin(), response.factors().end()},
                      .next_loss_scale = response.next_loss_scale(),
                      .finite_steps = response.finite_steps()};
}

class PeerReporter final : public StepReporter {
 public:
  explicit PeerReporter(PeerReporterOptions options) : options_(std::move(options)) {}
  ~PeerReporter() override {
    std::list<std::shared_ptr<LeadCall>> pending;
    {
      MutexLock lock(mutex_);
      pending.swap(pending_);
    }
    for (const auto& call : pending) {
      call->Cancel(Error(ErrorCode::kCancelled, "job {} has ended", options_.job));
    }
  }

  void Report(uint64_t step, const StepFindings& findings, DecisionCallback done) override {
    using Call = Messages<v1::ReportStepRequest, v1::ReportStepResponse>;
    const auto call = std::make_shared<Call>(options_.channel);
    SetCaller(options_, step, &call->request);
    SetFindings(findings, &call->request);
    Send(
        [call](grpc::ClientContext* context, std::function<void(grpc::Status)> answered) {
          call->stub->async()->ReportStep(context, &call->request, &call->response,
                                          std::move(answered));
        },
        [call, lead = options_.lead_name, done = std::move(done)](const Status& status) {
          done(status.ok() ? DecisionOf(call->response, lead) : StatusOr<StepDecision>(status));
        });
  }

  void ReportDurable(uint64_t step, DurableCallback done) override {
    using Call = Messages<v1::ReportDurableRequest, v1::ReportDurableResponse>;
    const auto call = std::make_shared<Call>(options_.channel);
    SetCaller(options_, step, &call->request);
    Send(
        [call](grpc::ClientContext* context, std::function<void(grpc::Status)> answered) {
          call->stub->async()->ReportDurable(context, &call->request, &call->response,
                                             std::move(answered));
        },
        std::move(done));
  }

 private:
  void Send(LeadCall::Attempt attempt, LeadCall::Done done) LUWU_EXCLUDES(mutex_) {
    const auto call = std::make_shared<LeadCall>(options_, std::move(attempt), std::move(done));
    {
      MutexLock lock(mutex_);
      pending_.remove_if([](const auto& former) { return former->ended(); });
      pending_.push_back(call);
    }
    call->Send();
  }

  const PeerReporterOptions options_;
  Mutex mutex_;
  std::list<std::shared_ptr<LeadCall>> pending_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<StepReporter> MakePeerReporter(PeerReporterOptions options) {
  return std::make_unique<PeerReporter>(std::move(options));
}

}  // namespace luwu
