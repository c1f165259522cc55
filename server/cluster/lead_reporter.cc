#include "server/cluster/lead_reporter.h"

#include <utility>

namespace luwu {
namespace {

class LeadReporter final : public StepReporter {
 public:
  LeadReporter(std::shared_ptr<CommitCoordinator> coordinator, uint64_t epoch, uint32_t self)
      : coordinator_(std::move(coordinator)), epoch_(epoch), self_(self) {}

  void Report(uint64_t step, const StepFindings& findings, DecisionCallback done) override {
    coordinator_->Report({epoch_, step, self_, findings}, TimePoint::max(), std::move(done));
  }
  void ReportDurable(uint64_t step, DurableCallback done) override {
    coordinator_->ReportDurable({epoch_, step, self_}, TimePoint::max(), std::move(done));
  }

 private:
  const std::shared_ptr<CommitCoordinator> coordinator_;
  const uint64_t epoch_;
  const uint32_t self_;
};

}  // namespace

std::unique_ptr<StepReporter> MakeLeadReporter(std::shared_ptr<CommitCoordinator> coordinator,
                                               uint64_t epoch, uint32_t self) {
  return std::make_unique<LeadReporter>(std::move(coordinator), epoch, self);
}

}  // namespace luwu
