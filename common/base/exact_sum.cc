#include "common/base/exact_sum.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

namespace luwu {
namespace {

constexpr int kUnitExponent = -298;
constexpr int kMantissaBits = 53;
constexpr int kTopExponent = 301;  // of the largest value that Add takes

static_assert(std::endian::native == std::endian::little, "words are sent as they lie");

}  // namespace

void ExactSum::Add(double value) {
  LUWU_CHECK(std::isfinite(value) && value >= 0 && !std::signbit(value), "a sum of squares");
  if (value == 0) return;
  int exponent = 0;  // value = fraction * 2^exponent, fraction in [0.5, 1)
  const double fraction = std::frexp(value, &exponent);
  LUWU_CHECK(exponent <= kTopExponent, "a sum of squares of fp32 values");
  auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, kMantissaBits));
  int shift = exponent - kMantissaBits - kUnitExponent;
  if (shift < 0) {
    const int drop = -shift;
    LUWU_CHECK(drop < 64 && (mantissa & ((uint64_t{1} << drop) - 1)) == 0, "a multiple of 2^-298");
    mantissa >>= drop;
    shift = 0;
  }
  const uint32_t word = static_cast<uint32_t>(shift) / 64;
  const uint32_t bit = static_cast<uint32_t>(shift) % 64;
  const uint64_t parts[2] = {mantissa << bit, bit == 0 ? 0 : mantissa >> (64 - bit)};
  uint64_t carry = 0;
  for (uint32_t i = word; i < kWords; ++i) {
    const uint64_t part = i < word + 2 ? parts[i - word] : 0;
    if (part == 0 && carry == 0 && i >= word + 2) break;
    const uint64_t sum = words_[i] + part;
    const uint64_t total = sum + carry;
    carry = uint64_t{sum < part} + uint64_t{total < sum};
    words_[i] = total;
  }
  LUWU_CHECK(carry == 0, "a sum of squares does not wrap");
}

void ExactSum::Merge(const ExactSum& other) {
  uint64_t carry = 0;
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint64_t sum = words_[i] + other.words_[i];
    const uint64_t total = sum + carry;
    carry = uint64_t{sum < other.words_[i]} + uint64_t{total < sum};
    words_[i] = total;
  }
  LUWU_CHECK(carry == 0, "a sum of squares does not wrap");
}

bool ExactSum::IsZero() const { return *this == ExactSum(); }

double ExactSum::ToDouble() const {
  uint32_t top = kWords;
  while (top > 0 && words_[top - 1] == 0) --top;
  if (top == 0) return 0;
  // The 64 bits from the highest that is set, and whether anything lies below them.
  const uint32_t high_bits = 64 - static_cast<uint32_t>(std::countl_zero(words_[top - 1]));
  const uint32_t total_bits = 64 * (top - 1) + high_bits;
  uint64_t head = words_[top - 1] << (64 - high_bits);
  if (top > 1 && high_bits < 64) head |= words_[top - 2] >> high_bits;
  bool below = top > 1 && high_bits < 64 && (words_[top - 2] << (64 - high_bits)) != 0;
  if (top > 1 && high_bits == 64) below = words_[top - 2] != 0;
  for (uint32_t i = 0; i + 2 < top; ++i) below = below || words_[i] != 0;
  constexpr int kDropped = 64 - kMantissaBits;
  constexpr uint64_t kHalf = uint64_t{1} << (kDropped - 1);
  uint64_t mantissa = head >> kDropped;
  const uint64_t rest = head & ((uint64_t{1} << kDropped) - 1);
  const bool up = rest > kHalf || (rest == kHalf && (below || (mantissa & 1) != 0));
  mantissa += up;  // 2^53 at most, still exact
  const int exponent = static_cast<int>(total_bits) - kMantissaBits + kUnitExponent;
  return std::ldexp(static_cast<double>(mantissa), exponent);
}

std::string ExactSum::Serialize() const {
  uint32_t top = kWords;
  while (top > 0 && words_[top - 1] == 0) --top;
  if (top == 0) return "";
  uint32_t low = 0;
  while (words_[low] == 0) ++low;
  std::string bytes(1 + (top - low) * sizeof(uint64_t), static_cast<char>(low));
  std::memcpy(bytes.data() + 1, &words_[low], (top - low) * sizeof(uint64_t));
  return bytes;
}

StatusOr<ExactSum> ExactSum::Parse(std::string_view bytes) {
  ExactSum sum;
  if (bytes.empty()) return sum;
  const auto low = static_cast<uint8_t>(bytes[0]);
  const size_t count = (bytes.size() - 1) / sizeof(uint64_t);
  const bool fits = low < kWords && count >= 1 && count <= kWords - low &&
                    bytes.size() == 1 + count * sizeof(uint64_t);
  if (fits) std::memcpy(&sum.words_[low], bytes.data() + 1, count * sizeof(uint64_t));
  if (!fits || sum.words_[low] == 0 || sum.words_[low + count - 1] == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} bytes are not an exact sum as this version writes it; use daemons of one "
                 "version",
                 bytes.size());
  }
  return sum;
}

}  // namespace luwu
