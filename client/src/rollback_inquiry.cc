#include "client/src/rollback_inquiry.h"

#include <algorithm>

#include "client/src/node_finder.h"

namespace luwu::client {
namespace {

constexpr uint64_t kAnswerMs = 1'000;
constexpr uint64_t kLostPatienceMs = 1'000;  // a lost node was waited for already

}  // namespace

std::optional<uint64_t> RollbackInquiry::step() const {
  MutexLock lock(step_mutex_);
  return step_;
}

// The lead comes last when a job goes back, so its word counts; but it may not know yet that
// another node has been restarted.
RollbackInquiry::Finding RollbackInquiry::Ask(TimePoint deadline, JobState* state,
                                              std::string* detail) {
  const std::vector<uint32_t>& nodes = fabric_->active();
  const TimePoint answer_by = std::min(deadline, DeadlineAfter(kAnswerMs));
  const auto answers = FanOut<JobState>(nodes.size(), [&](size_t i, NodeRpc::Done<JobState> done) {
    (*rpcs_)[nodes[i]]->DescribeJob(job(), answer_by, std::move(done));
  });
  Finding finding = Finding::kUnchanged;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!answers[i].ok()) {
      if (CodeOf(answers[i].status()) == ErrorCode::kCancelled) return Finding::kClosed;
      const bool gone = CodeOf(answers[i].status()) == ErrorCode::kNotFound;
      if (!gone && finding == Finding::kUnchanged) finding = Finding::kUnknown;
      continue;
    }
    const JobState& answer = *answers[i];
    if (answer.lineage != origin_.lineage) continue;  // another job of that name
    if (answer.phase == JobPhase::kLost) {
      *detail = answer.detail;
      return Finding::kLost;
    }
    if (answer.phase == JobPhase::kRecovering) {
      *detail = answer.detail;
      finding = Finding::kRecovering;
    } else if (answer.epoch != fabric_->options().epoch) {
      if (nodes[i] == origin_.lead) {
        *state = answer;
        return Finding::kMoved;
      }
      finding = Finding::kRecovering;
    }
  }
  return finding;
}

Status RollbackInquiry::Moved(const JobState& state) {
  {
    MutexLock lock(step_mutex_);
    step_ = state.first_step;
  }
  verdict_ =
      Error(ErrorCode::kRolledBack,
            "job '{}' was rolled back to step {}; open a new session (Session.reopen(), or with "
            "luwu.torch optimizer.resume()) and go on from there",
            job(), state.first_step);
  return verdict_;
}

Status RollbackInquiry::Explain(const Status& why) {
  const ErrorCode code = CodeOf(why);
  if (!MayBeOne(code)) return why;
  MutexLock lock(mutex_);
  if (!verdict_.ok()) return verdict_;
  const TimePoint patience_end = DeadlineAfter(fabric_->options().patience_ms);
  const TimePoint unknown_end = code == ErrorCode::kNodeLost
                                    ? std::min(patience_end, DeadlineAfter(kLostPatienceMs))
                                    : patience_end;
  std::string detail;
  bool told = code == ErrorCode::kRolledBack;  // that it is going back
  while (true) {
    JobState state;
    const Finding finding = Ask(patience_end, &state, &detail);
    told = told || finding == Finding::kRecovering;
    switch (finding) {
      case Finding::kMoved:
        return Moved(state);
      case Finding::kLost:
        verdict_ = Error(ErrorCode::kJobFailed, "job '{}' cannot be recovered: {}", job(), detail);
        return verdict_;
      case Finding::kClosed:
        return why;
      case Finding::kUnchanged:
        if (!told) return why;
        break;
      case Finding::kRecovering:
      case Finding::kUnknown:
        break;
    }
    const TimePoint now = std::chrono::steady_clock::now();
    if (finding == Finding::kUnknown && !told && now >= unknown_end) return why;
    if (now >= patience_end) {
      if (!told) return why;
      return Error(
          ErrorCode::kRolledBack,
          "job '{}' is being rolled back ({}); open a new session (Session.reopen(), or with "
          "luwu.torch optimizer.resume()), which waits until it is back",
          job(), detail.empty() ? MessageOf(why) : detail);
    }
    PauseBeforeRetry(patience_end);
  }
}

}  // namespace luwu::client
