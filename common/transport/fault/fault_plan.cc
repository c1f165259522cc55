#include <charconv>
#include <set>
#include <string>
#include <string_view>

#include "common/transport/fault/fault_endpoint.h"

namespace luwu::transport {
namespace {

constexpr uint64_t kPermilleMax = 1000;
constexpr uint64_t kDelayMsMax = 60'000;

Status TakeValue(std::string_view key, uint64_t max, uint64_t value, uint32_t* out) {
  if (value > max) {
    return Error(ErrorCode::kInvalidArgument, "fault plan: {}={} is more than {}", key, value, max);
  }
  *out = static_cast<uint32_t>(value);
  return OkStatus();
}

Status Apply(std::string_view key, uint64_t value, FaultPlan* plan) {
  if (key == "seed") {
    plan->seed = value;
  } else if (key == "delay") {
    return TakeValue(key, kPermilleMax, value, &plan->delay_permille);
  } else if (key == "delay_ms") {
    return TakeValue(key, kDelayMsMax, value, &plan->delay_ms_max);
  } else if (key == "duplicate") {
    return TakeValue(key, kPermilleMax, value, &plan->duplicate_permille);
  } else if (key == "drop") {
    return TakeValue(key, kPermilleMax, value, &plan->drop_permille);
  } else if (key == "lose") {
    return TakeValue(key, kPermilleMax, value, &plan->lose_completion_permille);
  } else if (key == "disconnect_after") {
    plan->disconnect_after_requests = value;
  } else {
    return Error(ErrorCode::kInvalidArgument,
                 "fault plan: unknown key '{}'; known are seed, delay, delay_ms, duplicate, drop, "
                 "lose and disconnect_after",
                 key);
  }
  return OkStatus();
}

}  // namespace

StatusOr<FaultPlan> ParseFaultPlan(std::string_view text) {
  FaultPlan plan;
  std::set<std::string_view> seen;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      return Error(ErrorCode::kInvalidArgument, "fault plan: '{}' is not key=value", entry);
    }
    const std::string_view key = entry.substr(0, equals);
    const std::string_view digits = entry.substr(equals + 1);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return Error(ErrorCode::kInvalidArgument, "fault plan: '{}' is not a whole number (key {})",
                   digits, key);
    }
    if (!seen.insert(key).second) {
      return Error(ErrorCode::kInvalidArgument, "fault plan: '{}' is given twice", key);
    }
    RETURN_IF_ERROR(Apply(key, value, &plan));
  }
  return plan;
}

}  // namespace luwu::transport
