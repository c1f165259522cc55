#include "server/step/step_reporter.h"

namespace luwu {

std::string_view OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kUnspecified:
      return "none";
    case Outcome::kApplied:
      return "applied";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kFailed:
      return "failed";
  }
  return "unknown";
}

uint32_t ClipUnits(const JobSpec& spec) {
  if (spec.clip_scope == ClipScope::kGroup) return spec.groups;
  if (spec.clip_scope == ClipScope::kLayer) return static_cast<uint32_t>(spec.layers.size());
  return 1;
}

std::vector<double> NormLimits(const JobSpec& spec, const std::vector<HyperParameters>& groups) {
  std::vector<double> limits;
  const size_t count = spec.clip_scope == ClipScope::kGroup  ? groups.size()
                       : spec.clip_scope == ClipScope::kNone ? 0
                                                             : 1;
  for (size_t i = 0; i < count && i < groups.size(); ++i) limits.push_back(groups[i].max_norm);
  return limits;
}

}  // namespace luwu
