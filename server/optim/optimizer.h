// Optimizers as fused passes: one pass over memory sums the gradients of all workers in the order
// given, checks that the sum is finite, and writes new state and the served copy. Pure functions of
// their arguments; no hidden counters, no allocation, callable from any thread on disjoint ranges.
// Every SIMD variant gives the same bits (no fused multiply-add; one rounding per operation).
//
// State is kept in arrays of bytes, one for each format of docs/OPTIMIZERS.md. An array belongs to
// a whole shard; a range of it is named by element numbers, because an 8-bit value means nothing
// without the scale of its block. A range lies in one tensor segment and begins at the segment's
// start or at a multiple of 256 elements of the shard; it ends at the segment's end or at such a
// multiple.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "common/tensor/job_spec.h"

namespace luwu::optim {

inline constexpr uint32_t kStateArraysMax = 4;
inline constexpr uint64_t kAllFinite = std::numeric_limits<uint64_t>::max();
// Elements that share one scale in the 8-bit formats: those of one segment between two multiples.
inline constexpr uint64_t kQuantBlock = 256;

enum class StateFormat : uint8_t {
  kFloat32,
  kBFloat16,   // stochastically rounded
  kSigned8,    // blockwise8: sign, 4 bits of exponent, 3 of mantissa
  kUnsigned8,  // blockwise8: 5 bits of exponent, 3 of mantissa
  kLow16,      // split master: what the served bf16 copy lacks
};

// Arrays of one generation of a trainable shard, master first: AdamW has master, exp_avg,
// exp_avg_sq. (A frozen shard has one fp32 array.)
struct StateLayout {
  uint32_t count = 0;
  std::array<StateFormat, kStateArraysMax> formats = {};
};
StateLayout LayoutOf(const OptimizerSpec& optimizer);

// Bytes of one array of a shard, a multiple of 64. 8-bit arrays: the codes, filled up to 64 bytes,
// then one fp32 scale for each block; element i of segment j belongs to block i / 256 + j.
uint64_t ArrayBytes(StateFormat format, uint64_t elements, uint64_t segments);

// Where each array of one shard begins; on 64 bytes. Unused ones are null.
struct StateArrays {
  std::array<std::byte*, kStateArraysMax> data = {};
  bool operator==(const StateArrays&) const = default;
};

// One addend, in memory at the first element of the range. Alignment: that of its dtype.
struct GradientSource {
  const std::byte* data = nullptr;
  DType dtype = DType::kUnspecified;  // float32, bfloat16 or float16
};

// `served`, `served_in`, `in` and `out` point to the whole shard; `gradients` and `held` to the
// range's first element.
struct UpdateRange {
  uint64_t first = 0;                         // of the range, in the shard
  uint64_t count = 0;                         // may be 0
  uint64_t shard_elements = 0;                // of the whole shard; 8-bit scales lie behind them
  uint32_t segment = 0;                       // ordinal of the range's segment in the shard
  uint64_t job_element = 0;                   // job-wide number of the range's first element
  std::span<const GradientSource> gradients;  // >= 1; ((g0 + g1) + g2) + ... in fp32
  float gradient_scale = 1;                   // multiplies the sum (1 / world size for mean)
  StateArrays in;                             // read
  StateArrays out;                            // written; equal to `in` or disjoint from it
  const std::byte* served_in = nullptr;       // the served copy `in` belongs to; split master only
  std::byte* served = nullptr;                // the new master, converted; never null
  DType served_dtype = DType::kUnspecified;
  // Past the caches; for callers that do not look at the served copy right after.
  bool stream_served = false;
  // Not null: receives the unscaled sum, which may be the first source itself when that is fp32.
  std::byte* held = nullptr;
  DType held_dtype = DType::kFloat32;  // bfloat16: the sum is rounded before all other use
};

struct UpdateOutcome {
  // First element of the range whose scaled sum is NaN or infinite. When not kAllFinite,
  // everything at `out` and `served` is unspecified; with out == in the state is lost.
  uint64_t non_finite = kAllFinite;
  // Of the scaled sum, in double. Element k of the range's part of a quantisation block is added to
  // lane k / 2 % 8, block after block; then lanes 4 apart are added, then 2 and 1. So the number
  // depends on the cut into ranges, and on nothing else.
  double squared_norm = 0;
};

// `applied`: updates these elements have had before, so that this one is number applied + 1 (bias
// correction; SGD's first momentum; stochastic rounding).
UpdateOutcome ApplyUpdate(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                          uint64_t applied, const UpdateRange& range);

// Writes the sum to `held` and says of held * scale what ApplyUpdate would.
struct HoldRange {
  uint64_t first = 0;  // of the range, in the shard
  uint64_t count = 0;
  std::span<const GradientSource> gradients;  // as in UpdateRange; may contain `held` (first, fp32)
  float gradient_scale = 1;
  std::byte* held = nullptr;  // at the range's first element
  DType held_dtype = DType::kFloat32;
};
UpdateOutcome HoldSum(const HoldRange& range);

// A range of one shard's state outside an update.
struct StateRange {
  uint64_t first = 0;
  uint64_t count = 0;  // any range within the segment
  uint64_t shard_elements = 0;
  uint32_t segment = 0;
  StateArrays state;
  std::byte* served = nullptr;  // of the shard, belonging to `state`; split master only
};
// Every array but the master as it is before the first update: Adagrad's initial accumulator, else
// zero. The range is one that ApplyUpdate would take. Zeroed memory needs no call when
// initial_accumulator is 0.
void InitialState(const OptimizerSpec& optimizer, const StateRange& range);
// `count` values of one array (0: master).
void ReadState(const OptimizerSpec& optimizer, const StateRange& range, uint32_t array,
               float* values);
// The inverse: what was read from any state comes back as the same values, in every format. The
// range is one that ApplyUpdate would take. Values that the format does not have become the nearest
// ones it has.
void WriteState(const OptimizerSpec& optimizer, const StateRange& range, uint32_t array,
                const float* values);
// Sets masters; a split master also sets the served copy, and makes every NaN the quiet one.
void WriteMasters(const OptimizerSpec& optimizer, const StateRange& range, const float* values);

// sum[i] = g[i] if `first`, else sum[i] + g[i], in fp32: the same additions that ApplyUpdate makes,
// so that a prefix may be summed ahead and passed as the first source with equal bits.
void AccumulateGradient(const GradientSource& gradient, uint64_t count, bool first, float* sum);

// Index of the first non-finite element of one source, or kAllFinite.
uint64_t FindNonFinite(const GradientSource& gradient, uint64_t count);

// The variant that run-time dispatch picked on this CPU: "AVX3", "AVX2", "SSE4", ...
std::string_view KernelName();

}  // namespace luwu::optim
