// Decides steps for a job on its own, as a lead with a single node does (through the real
// coordinator), or keeps the report until the test decides. Remembers its decisions; a test may
// change one before the job hears of it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "server/cluster/commit_coordinator.h"
#include "server/step/step_reporter.h"

namespace luwu::fakes {

// Shared by the test and the reporter that the job owns.
class Decider {
 public:
  struct Report {
    uint64_t step = 0;
    StepFindings findings;
    DecisionCallback done;
  };
  using Change = std::function<void(uint64_t step, StepDecision* decision)>;

  explicit Decider(const JobSpec& spec, std::optional<persist::Point> restored = std::nullopt)
      : coordinator_(OptionsFor(spec, std::move(restored))) {}

  void Hold(bool hold) {
    MutexLock lock(mutex_);
    hold_ = hold;
  }
  void ChangeDecisions(Change change) {
    MutexLock lock(mutex_);
    change_ = std::move(change);
  }
  // Waits up to 30 s for a report that is held.
  std::optional<Report> Take() {
    const TimePoint deadline = DeadlineAfter(30000);
    MutexLock lock(mutex_);
    while (held_.empty()) {
      if (!arrived_.WaitUntil(mutex_, deadline) && held_.empty()) return std::nullopt;
    }
    Report report = std::move(held_.front());
    held_.erase(held_.begin());
    return report;
  }
  uint64_t count() {
    MutexLock lock(mutex_);
    return count_;
  }
  // Of a step that was decided here.
  StepDecision decision(uint64_t step) {
    MutexLock lock(mutex_);
    return decisions_.at(step);
  }

  void OnReport(Report report) {
    Change change;
    {
      MutexLock lock(mutex_);
      ++count_;
      if (hold_) {
        held_.push_back(std::move(report));
        arrived_.NotifyAll();
        return;
      }
      change = change_;
    }
    coordinator_.Report({kEpoch, report.step, 0, report.findings}, TimePoint::max(),
                        [&](StatusOr<StepDecision> decision) {
                          if (decision.ok()) {
                            if (change) change(report.step, &*decision);
                            MutexLock lock(mutex_);
                            decisions_[report.step] = *decision;
                          }
                          report.done(decision);
                        });
  }
  void OnDurable(uint64_t step, DurableCallback done) {
    coordinator_.ReportDurable({kEpoch, step, 0}, TimePoint::max(), std::move(done));
  }

 private:
  static constexpr uint64_t kEpoch = 1;

  static CoordinatorOptions OptionsFor(const JobSpec& spec,
                                       std::optional<persist::Point> restored) {
    CoordinatorOptions options = CoordinatorOptionsFor(spec, kEpoch, std::vector<Node>(1));
    options.restored = std::move(restored);
    return options;
  }

  CommitCoordinator coordinator_;
  Mutex mutex_;
  CondVar arrived_;
  bool hold_ LUWU_GUARDED_BY(mutex_) = false;
  uint64_t count_ LUWU_GUARDED_BY(mutex_) = 0;
  std::vector<Report> held_ LUWU_GUARDED_BY(mutex_);
  Change change_ LUWU_GUARDED_BY(mutex_);
  std::map<uint64_t, StepDecision> decisions_ LUWU_GUARDED_BY(mutex_);
};

class FakeReporter final : public StepReporter {
 public:
  // `decider` outlives the job.
  explicit FakeReporter(Decider* decider) : decider_(decider) {}
  void Report(uint64_t step, const StepFindings& findings, DecisionCallback done) override {
    decider_->OnReport({step, findings, std::move(done)});
  }
  void ReportDurable(uint64_t step, DurableCallback done) override {
    decider_->OnDurable(step, std::move(done));
  }

 private:
  Decider* const decider_;
};

}  // namespace luwu::fakes
