#include "common/config/quantity.h"

#include <charconv>
#include <optional>
#include <span>

#include "common/base/bytes.h"

namespace luwu {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};
constexpr Unit kByteUnits[] = {
    {"", 1}, {"B", 1}, {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}, {"TiB", 1024 * kGiB},
};
constexpr Unit kTimeUnits[] = {
    {"", 1}, {"ms", 1}, {"s", 1000}, {"min", 60 * 1000}, {"h", 3600 * 1000},
};

std::optional<uint64_t> Parse(std::string_view text, std::span<const Unit> units) {
  const char* const end = text.data() + text.size();
  uint64_t whole = 0;
  auto [rest, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc()) return std::nullopt;

  // Up to nine decimals, as billionths.
  uint64_t fraction = 0;
  constexpr uint64_t kFractionUnit = 1'000'000'000;
  if (rest != end && *rest == '.') {
    uint64_t digit_value = kFractionUnit / 10;
    const char* digit = rest + 1;
    if (digit == end || *digit < '0' || *digit > '9') return std::nullopt;
    for (; digit != end && *digit >= '0' && *digit <= '9'; ++digit) {
      if (digit_value == 0) return std::nullopt;
      fraction += static_cast<uint64_t>(*digit - '0') * digit_value;
      digit_value /= 10;
    }
    rest = digit;
  }
  std::string_view name(rest, static_cast<size_t>(end - rest));
  if (name.size() > 1 && name[0] == ' ') name.remove_prefix(1);
  for (const Unit& unit : units) {
    if (unit.name != name) continue;
    const std::optional<uint64_t> product = CheckedMul(whole, unit.factor);
    if (!product) return std::nullopt;
    // 2^40 * 10^9 needs 70 bits.
    const auto part = static_cast<unsigned __int128>(unit.factor) * fraction;
    if (part % kFractionUnit != 0) return std::nullopt;  // no half bytes
    return CheckedAdd(*product, static_cast<uint64_t>(part / kFractionUnit));
  }
  return std::nullopt;
}

}  // namespace

StatusOr<uint64_t> ParseBytes(std::string_view text) {
  if (const std::optional<uint64_t> bytes = Parse(text, kByteUnits)) return *bytes;
  return Error(ErrorCode::kInvalidArgument,
               "'{}' is not a size; write a whole number of bytes, or a number with B, KiB, MiB, "
               "GiB or TiB",
               text);
}

StatusOr<uint64_t> ParseDurationMs(std::string_view text) {
  if (const std::optional<uint64_t> duration_ms = Parse(text, kTimeUnits)) return *duration_ms;
  return Error(ErrorCode::kInvalidArgument,
               "'{}' is not a duration; write whole milliseconds, or a number with ms, s, min or h",
               text);
}

}  // namespace luwu
