#include "server/cluster/recovery_round.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace luwu {
namespace {

constexpr uint64_t kFirstPauseMs = 250;  // doubled each time: 8 s over all kReadsMax

// Asking again does not help.
bool Lasts(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kUnsupported ||
         code == ErrorCode::kJobFailed;
}

std::string Describe(const std::vector<persist::Point>& points) {
  std::string text;
  for (const persist::Point& point : points) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", point.step);
  }
  return text.empty() ? "none" : "of step " + text;
}

}  // namespace

RecoveryRound::RecoveryRound(Options options)
    : options_(std::move(options)),
      stored_(options_.nodes.size()),
      rolled_back_(options_.nodes.size()) {}

std::vector<uint32_t> RecoveryRound::Pending() const {
  std::vector<uint32_t> pending;
  for (uint32_t node = 0; node < options_.nodes.size(); ++node) {
    if (options_.nodes[node].weight == 0) continue;
    const bool is_lead = node == options_.lead;
    const bool asked = phase_ == Phase::kPreparing ? !stored_[node]
                       : phase_ == Phase::kRollingBack
                           ? !is_lead && !rolled_back_[node]
                           : phase_ == Phase::kRollingBackLead && is_lead;
    if (asked) pending.push_back(node);
  }
  return pending;
}

void RecoveryRound::End(Phase phase, std::string reason) {
  phase_ = phase;
  reason_ = std::move(reason);
  waits_code_ = ErrorCode::kOk;
}

void RecoveryRound::WaitFor(std::string reason, ErrorCode code) {
  reason_ = std::move(reason);
  waits_code_ = code;
}

void RecoveryRound::OnNoted(const Status& noted) {
  if (noted.ok()) return;
  const std::string what = fmt::format("{}: {}", NameOf(options_.lead), MessageOf(noted));
  if (Lasts(CodeOf(noted))) {
    End(Phase::kImpossible, what);
  } else {
    WaitFor("waiting for " + what, CodeOf(noted));
  }
}

void RecoveryRound::OnPrepared(uint32_t node, const StatusOr<StoredPoints>& answer) {
  if (phase_ != Phase::kPreparing) return;
  if (!answer.ok()) {
    const std::string what = fmt::format("{}: {}", NameOf(node), MessageOf(answer.status()));
    const ErrorCode code = CodeOf(answer.status());
    if (Lasts(code)) {
      End(Phase::kImpossible, what);
    } else {
      WaitFor("waiting for " + what, code);
    }
    return;
  }
  stored_[node] = *answer;
  if (Pending().empty()) ChooseTarget();
}

bool RecoveryRound::IsDamaged(const persist::Point& point) const {
  return std::any_of(options_.doubtful.begin(), options_.doubtful.end(),
                     [&](const DoubtfulPoint& other) {
                       return SamePoint(point, other.point) && other.failures >= kReadsMax;
                     });
}

bool RecoveryRound::AllHave(const persist::Point& point) const {
  for (uint32_t node = 0; node < options_.nodes.size(); ++node) {
    if (options_.nodes[node].weight == 0) continue;
    const std::vector<persist::Point>& points = stored_[node]->points;
    if (std::none_of(points.begin(), points.end(),
                     [&](const persist::Point& other) { return SamePoint(point, other); })) {
      return false;
    }
  }
  return true;
}

std::optional<persist::Point> RecoveryRound::NewestCommon() const {
  std::optional<persist::Point> newest;
  for (const persist::Point& point : stored_[options_.lead]->points) {
    if (IsDamaged(point) || !AllHave(point)) continue;
    if (!newest || point.step > newest->step) newest = point;
  }
  return newest;
}

std::optional<persist::Point> RecoveryRound::CommonCheckpoint() const {
  std::optional<persist::Point> common;
  for (uint32_t node = 0; node < options_.nodes.size(); ++node) {
    if (options_.nodes[node].weight == 0) continue;
    const auto& checkpoints = stored_[node]->checkpoints;
    const auto found = std::find_if(
        checkpoints.begin(), checkpoints.end(),
        [&](const persist::Checkpoint& other) { return other.name == options_.checkpoint; });
    if (found == checkpoints.end()) return std::nullopt;
    if (common && !SamePoint(*common, found->point)) return std::nullopt;
    common = found->point;
  }
  if (common && IsDamaged(*common)) return std::nullopt;
  return common;
}

void RecoveryRound::ChooseTarget() {
  target_ = options_.checkpoint.empty() ? NewestCommon() : CommonCheckpoint();
  if (target_) {
    phase_ = Phase::kRollingBack;
    WaitFor(fmt::format("rolling back to step {}", target_->step), ErrorCode::kOk);
    if (Pending().empty()) phase_ = Phase::kRollingBackLead;
    return;
  }
  if (!options_.checkpoint.empty()) {
    End(Phase::kImpossible,
        fmt::format("checkpoint '{}' is not there, or cannot be read, on some node{}; luwuctl "
                    "checkpoint list shows which there are",
                    options_.checkpoint, DescribeDamaged()));
    return;
  }
  std::string text;
  for (uint32_t node = 0; node < options_.nodes.size(); ++node) {
    if (options_.nodes[node].weight == 0) continue;
    text += fmt::format("{}{} has {}", text.empty() ? "" : "; ", NameOf(node),
                        Describe(stored_[node]->points));
  }
  End(Phase::kImpossible,
      fmt::format("no point that all nodes have and can read ({}){}", text, DescribeDamaged()));
}

std::string RecoveryRound::DescribeDamaged() const {
  std::string text;
  for (const DoubtfulPoint& point : options_.doubtful) {
    if (point.failures < kReadsMax) continue;
    text +=
        fmt::format("; step {} failed {} times: {}", point.point.step, point.failures, point.why);
  }
  return text;
}

void RecoveryRound::OnUnreadable(const std::string& what) {
  auto doubt =
      std::find_if(options_.doubtful.begin(), options_.doubtful.end(),
                   [&](const DoubtfulPoint& other) { return SamePoint(*target_, other.point); });
  if (doubt == options_.doubtful.end()) {
    doubt = options_.doubtful.insert(doubt, {.point = *target_, .failures = 0, .why = ""});
  }
  ++doubt->failures;
  doubt->why = what;
  if (doubt->failures >= kReadsMax) {
    End(Phase::kAgain, fmt::format("step {} counts as damaged after {} attempts: {}", target_->step,
                                   doubt->failures, what));
    return;
  }
  pause_ms_ = kFirstPauseMs << (doubt->failures - 1);
  End(Phase::kAgain, fmt::format("step {} could not be read (attempt {} of {}; again in {} ms): {}",
                                 target_->step, doubt->failures, kReadsMax, pause_ms_, what));
}

void RecoveryRound::OnRolledBack(uint32_t node, const Status& answer) {
  const bool lead_turn = phase_ == Phase::kRollingBackLead;
  if (phase_ != Phase::kRollingBack && !lead_turn) return;
  LUWU_CHECK(lead_turn == (node == options_.lead), "the lead comes last");
  if (answer.ok()) {
    rolled_back_[node] = true;
    if (lead_turn) {
      End(Phase::kDone, fmt::format("rolled back to step {}", target_->step));
    } else if (Pending().empty()) {
      phase_ = Phase::kRollingBackLead;
      WaitFor(fmt::format("rolling back to step {}", target_->step), ErrorCode::kOk);
    }
    return;
  }
  const std::string what = fmt::format("{}: {}", NameOf(node), MessageOf(answer));
  switch (CodeOf(answer)) {
    case ErrorCode::kCorrupt:
      OnUnreadable(what);
      return;
    case ErrorCode::kState:  // restarted, or prepared for another round
    case ErrorCode::kStaleEpoch:
    case ErrorCode::kNotFound:
      End(Phase::kAgain, what);
      return;
    default:
      WaitFor(fmt::format("rolling back to step {}: waiting for {}", target_->step, what),
              CodeOf(answer));
  }
}

}  // namespace luwu
