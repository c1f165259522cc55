// What a locked section of a job leaves to be done once the lock is released: boards to flush,
// commit waiters to answer, a report to send. Holds what it needs alive by itself, because the job
// may be gone by the time it runs.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "server/session/session.h"
#include "server/step/job.h"
#include "server/step/step_reporter.h"

namespace luwu {

class JobEffects {
 public:
  void FlushBoard(const std::shared_ptr<Session>& session) {
    for (const auto& known : boards_) {
      if (known == session) return;
    }
    boards_.push_back(session);
  }
  void Answer(CommitCallback done, StatusOr<CommitResult> result) {
    answers_.emplace_back(std::move(done), std::move(result));
  }
  void Report(std::shared_ptr<StepReporter> reporter, uint64_t step, StepFindings findings,
              DecisionCallback done) {
    report_ = PendingReport{std::move(reporter), step, std::move(findings), std::move(done)};
  }

  // With no lock held.
  void Run() {
    for (const auto& session : boards_) session->board().Flush();
    for (auto& [done, result] : answers_) done(std::move(result));
    if (report_) report_->reporter->Report(report_->step, report_->findings, report_->done);
  }

 private:
  struct PendingReport {
    std::shared_ptr<StepReporter> reporter;
    uint64_t step = 0;
    StepFindings findings;
    DecisionCallback done;
  };
  // Room for usual numbers of workers without an allocation per slot.
  absl::InlinedVector<std::shared_ptr<Session>, 16> boards_;
  std::vector<std::pair<CommitCallback, StatusOr<CommitResult>>> answers_;
  std::optional<PendingReport> report_;
};

}  // namespace luwu
