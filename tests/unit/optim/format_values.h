// State formats by the book (docs/OPTIMIZERS.md): one value at a time, in double where the product
// uses bit tricks.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "server/optim/optimizer.h"
#include "server/optim/rounding_key.h"

namespace luwu::optim::testing {

// The word of the pair that element `index` belongs to, in a tile that begins at `tile`; array 1, 2
// or 3. Pairs lie in rows of 16.
inline uint32_t OracleWord(const RoundingKey& key, uint64_t tile, uint64_t index, uint32_t array) {
  const uint64_t pair = (index - tile) / 2;
  const uint64_t top = tile + pair % 16 * 2;  // of the pair's column
  uint32_t x = key.arrays[array - 1].first + static_cast<uint32_t>(top) * 0x9e3779b9u;
  x ^= x >> 16;
  x ^= key.arrays[array - 1].second;
  x *= 0x846ca68bu;
  x ^= x >> 15;
  return x + static_cast<uint32_t>(pair / 16) * 0x9e319e37u;
}
inline bool IsFirstOfPair(uint64_t tile, uint64_t index) { return (index - tile) % 2 == 0; }
// For bf16: one half of the word.
inline uint32_t OracleRandom16(const RoundingKey& key, uint64_t tile, uint64_t index,
                               uint32_t array) {
  const uint32_t word = OracleWord(key, tile, index, array);
  return IsFirstOfPair(tile, index) ? word & 0xffff : word >> 16;
}
// For 8 bits: 20 bits from one end of the word.
inline uint32_t OracleRandom20(const RoundingKey& key, uint64_t tile, uint64_t index,
                               uint32_t array) {
  const uint32_t word = OracleWord(key, tile, index, array);
  return IsFirstOfPair(tile, index) ? word & 0xfffff : word >> 12;
}

inline double ValueOfCode(uint8_t code, bool is_signed) {
  const int bias = is_signed ? 15 : 31;
  const int magnitude = is_signed ? code & 127 : code;
  const int exponent = magnitude / 8, mantissa = magnitude % 8;
  const double value = exponent == 0 ? std::ldexp(mantissa / 8.0, 1 - bias)
                                     : std::ldexp(1 + mantissa / 8.0, exponent - bias);
  return is_signed && code >= 128 ? -value : value;
}

// The code whose value is the last at or below `share`, or the next, by chance random20 / 2^20.
inline uint8_t CodeOf(float value, float scale, bool is_signed, uint32_t random20) {
  const float inverse = 1.0f / scale;
  const float share = std::min(std::abs(value * inverse), 1.0f);
  const int bias = is_signed ? 15 : 31;
  const float smallest_normal = std::ldexp(1.0f, 1 - bias);
  // Below it: multiples of an eighth of it, in fp32's precision at 1.
  const bool is_small = share < smallest_normal;
  const int exponent = is_small ? 1 - bias : std::ilogb(share);
  const float fixed = is_small ? share + smallest_normal : share;
  const double eighths = (std::ldexp(fixed, -exponent) - 1) * 8;  // 0..8, 20 bits behind
  const double up = random20 / double{1 << 20};
  const uint32_t code = static_cast<uint32_t>(is_small ? 0 : 8 * (exponent + bias)) +
                        static_cast<uint32_t>(std::floor(eighths + up));
  if (!is_signed) return static_cast<uint8_t>(value >= 0x1p-133f ? std::max(code, 1u) : code);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 128u : 0u));
}

// What is left of a block of array 1, 2 or 3, from element `first` of its shard on, once it is
// written in `format` and read again.
inline void KeepBlock(StateFormat format, const RoundingKey& key, uint64_t first, uint32_t array,
                      std::span<float> values) {
  const bool is_signed = format == StateFormat::kSigned8;
  float scale = 0x1p-100f;
  for (const float value : values) scale = std::max(scale, std::abs(value));
  for (uint64_t i = 0; i < values.size(); ++i) {
    if (format == StateFormat::kBFloat16) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
      const uint32_t random = OracleRandom16(key, first, first + i, array);
      values[i] = std::bit_cast<float>((bits + random) & 0xffff0000u);
    } else if (is_signed || format == StateFormat::kUnsigned8) {
      const uint32_t random = OracleRandom20(key, first, first + i, array);
      const uint8_t code = CodeOf(values[i], scale, is_signed, random);
      values[i] = static_cast<float>(ValueOfCode(code, is_signed)) * scale;
    }
  }
}

}  // namespace luwu::optim::testing
