// Sizes: literals, checked arithmetic for sizes that came from outside, alignment, and the text
// form of a byte count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <fmt/format.h>

namespace luwu {

using ByteSpan = std::span<std::byte>;
using ConstByteSpan = std::span<const std::byte>;

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

[[nodiscard]] inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

[[nodiscard]] inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// `alignment` is a power of two.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// True when [offset, offset + length) lies within [0, size), without overflow.
constexpr bool RangeFits(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

// "12.3 MiB (12897485 bytes)".
inline std::string HumanBytes(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} bytes", bytes);
  if (bytes < kMiB) return fmt::format("{:.1f} KiB ({} bytes)", double(bytes) / kKiB, bytes);
  if (bytes < kGiB) return fmt::format("{:.1f} MiB ({} bytes)", double(bytes) / kMiB, bytes);
  return fmt::format("{:.2f} GiB ({} bytes)", double(bytes) / kGiB, bytes);
}

}  // namespace luwu
