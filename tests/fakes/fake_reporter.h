// Decides steps for a job on its own, as a lead with a single node does, or keeps the report until
// the test decides.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/tensor/job_spec.h"
#include "server/step/step_reporter.h"

namespace luwu::fakes {

// Shared by the test and the reporter that the job owns.
class Decider {
 public:
  struct Report {
    uint64_t step = 0;
    std::string non_finite;
    DecisionCallback done;
  };

  explicit Decider(NonFinitePolicy policy) : policy_(policy) {}

  void Hold(bool hold) {
    MutexLock lock(mutex_);
    hold_ = hold;
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

  void OnReport(Report report) {
    {
      MutexLock lock(mutex_);
      ++count_;
      if (hold_) {
        held_.push_back(std::move(report));
        arrived_.NotifyAll();
        return;
      }
    }
    StepDecision decision{Outcome::kApplied, ""};
    if (!report.non_finite.empty()) {
      decision = {policy_ == NonFinitePolicy::kFail ? Outcome::kFailed : Outcome::kSkipped,
                  report.non_finite};
    }
    report.done(decision);
  }

 private:
  const NonFinitePolicy policy_;
  Mutex mutex_;
  CondVar arrived_;
  bool hold_ LUWU_GUARDED_BY(mutex_) = false;
  uint64_t count_ LUWU_GUARDED_BY(mutex_) = 0;
  std::vector<Report> held_ LUWU_GUARDED_BY(mutex_);
};

class FakeReporter final : public StepReporter {
 public:
  // `decider` outlives the job.
  explicit FakeReporter(Decider* decider) : decider_(decider) {}
  void Report(uint64_t step, const std::string& non_finite, DecisionCallback done) override {
    decider_->OnReport({step, non_finite, std::move(done)});
  }

 private:
  Decider* const decider_;
};

}  // namespace luwu::fakes
