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

}  // namespace luwu
