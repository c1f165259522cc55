// Optimizers as fused passes: one pass over memory sums the gradients of all workers in the order
// given, checks that the sum is finite, and writes new state and the served copy. Pure functions of
// their arguments; no hidden counters, no allocation, callable from any thread on disjoint ranges.
// Every SIMD variant gives the same bits (no fused multiply-add; one rounding per operation).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "common/tensor/job_spec.h"

namespace luwu::optim {

inline constexpr uint32_t kStateArraysMax = 3;
inline constexpr uint64_t kAllFinite = std::numeric_limits<uint64_t>::max();

// fp32 arrays of state per element, master first: AdamW 3 (master, exp_avg, exp_avg_sq), SGD 1, or
// 2 with momentum (master, momentum buffer).
uint32_t StateArrayCount(const OptimizerSpec& optimizer);

// Pointers to the same element range in each state array; unused ones are null.
using StatePointers = std::array<float*, kStateArraysMax>;

// One addend, in memory at the first element of the range. Alignment: that of its dtype.
struct GradientSource {
  const std::byte* data = nullptr;
  DType dtype = DType::kUnspecified;  // float32, bfloat16 or float16
};

struct UpdateRange {
  uint64_t count = 0;
  std::span<const GradientSource> gradients;  // >= 1; ((g0 + g1) + g2) + ... in fp32
  float gradient_scale = 1;                   // multiplies the sum (1 / world size for mean)
  StatePointers in = {};                      // read
  StatePointers out = {};                     // written; equal to `in` or disjoint from it
  std::byte* served = nullptr;                // the new master, converted; never null
  DType served_dtype = DType::kUnspecified;
};

// `applied`: updates these elements have had before, so that this one is number applied + 1 (bias
// correction; SGD's first momentum). Returns the index of the first element whose scaled sum is
// NaN or infinite, or kAllFinite. When not kAllFinite, everything at `out` and `served` is
// unspecified; with out == in the state is lost.
uint64_t ApplyUpdate(const OptimizerSpec& optimizer, const HyperParameters& hyper, uint64_t applied,
                     const UpdateRange& range);

// sum[i] = g[i] if `first`, else sum[i] + g[i], in fp32: the same additions that ApplyUpdate makes,
// so that a prefix may be summed ahead and passed as the first source with equal bits.
void AccumulateGradient(const GradientSource& gradient, uint64_t count, bool first, float* sum);

// Index of the first non-finite element of one source, or kAllFinite.
uint64_t FindNonFinite(const GradientSource& gradient, uint64_t count);

// The variant that run-time dispatch picked on this CPU: "AVX3_ZEN4", "AVX3", "AVX2", "SSE4", ...
std::string_view KernelName();

}  // namespace luwu::optim
