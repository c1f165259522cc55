// Element arithmetic of the GPU kernels: compiled by nvcc into kernels.cu and by the host compiler
// into kernel_twins.cc, so that both give the same bits. Conversions are integer operations, as in
// common/tensor; NaN keeps its payload and is made quiet. Pure functions, no failure.
//
// A pack multiplies with `scale` (finite, not 0), rounds to the wire's dtype, and takes stock of
// what it has written: the squares of finite values are summed in double, where each product of two
// floats is exact, in an order that depends on the count alone.
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define LUWU_BOTH __host__ __device__ inline
#else
#define LUWU_BOTH inline
#endif

namespace luwu::client::kernels {

// Element i belongs to block (i / kThreads) % kBlocks and thread i % kThreads. Few blocks: packing
// has to keep up with the copy engine, not with the GPU's memory, and leaves the rest of the GPU
// to those who compute.
inline constexpr uint32_t kBlocks = 64;
inline constexpr uint32_t kThreads = 256;  // a power of two

// What a block has seen so far; launches add to it.
struct Partial {
  double square_sum;
  uint64_t non_finite;
};

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

LUWU_BOTH uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
LUWU_BOTH float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

LUWU_BOTH float ToFloat(float value) { return value; }
LUWU_BOTH float ToFloat(BFloat16 value) { return FloatOf(uint32_t{value.bits} << 16); }
LUWU_BOTH float ToFloat(Float16 value) {
  const uint32_t sign = (uint32_t{value.bits} & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude > 0x7c00u) return FloatOf(sign | 0x7fc00000u | (magnitude << 13));
  if (magnitude == 0x7c00u) return FloatOf(sign | 0x7f800000u);
  if (magnitude >= 0x400u) return FloatOf(sign | ((magnitude << 13) + (112u << 23)));
  // Denormal: a multiple of 2^-24, exact in float.
  const float size = static_cast<float>(magnitude) * FloatOf((127u - 24u) << 23);
  return FloatOf(sign | BitsOf(size));
}

LUWU_BOTH void FromFloat(float value, float* out) { *out = value; }
LUWU_BOTH void FromFloat(float value, BFloat16* out) {
  const uint32_t bits = BitsOf(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out->bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u
                                        : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
LUWU_BOTH void FromFloat(float value, Float16* out) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= (143u << 23)) {  // 65536 and more
    half = 0x7c00u;
  } else if (magnitude < (102u << 23)) {  // below 2^-25: half of the smallest denormal
    half = 0;
  } else if (magnitude < (113u << 23)) {
    // Denormal: the significand, shifted to multiples of 2^-24 and rounded to nearest even.
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126u - (magnitude >> 23);  // 14 to 24
    const uint32_t kept = significand >> shift;
    const uint32_t rest = significand & ((1u << shift) - 1u);
    const uint32_t tie = 1u << (shift - 1u);
    half = kept + (rest > tie || (rest == tie && (kept & 1u) != 0) ? 1u : 0u);
  } else {
    half = (magnitude + ((magnitude >> 13) & 1u) + 0xfffu - (112u << 23)) >> 13;
  }
  out->bits = static_cast<uint16_t>(half | sign);
}

// Processors differ in what NaN times something is.
LUWU_BOTH float Scaled(float value, float scale) {
  const bool nan = (BitsOf(value) & 0x7fffffffu) > 0x7f800000u;
  return nan || scale == 1.0f ? value : value * scale;
}

LUWU_BOTH bool IsFinite(float value) { return (BitsOf(value) & 0x7f800000u) != 0x7f800000u; }

LUWU_BOTH void Count(float written, Partial* partial) {
  if (IsFinite(written)) {
    partial->square_sum += static_cast<double>(written) * static_cast<double>(written);
  } else {
    partial->non_finite += 1;
  }
}

// One element of a pack.
template <typename Source, typename Target>
LUWU_BOTH void PackOne(const Source& source, float scale, Target* target, Partial* partial) {
  FromFloat(Scaled(ToFloat(source), scale), target);
  Count(ToFloat(*target), partial);
}

}  // namespace luwu::client::kernels
