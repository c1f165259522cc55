// The fused pass that all optimizers share: sum a tile of gradients, hand each vector of gradient
// and state to the optimizer's rule, write state and served copy. One read of every source and one
// write of every target.
//
// A rule is a struct with `static constexpr` members kMoments (0..3), kRoles (an array of
// StateRole, kMoments long, at least 1) and kHas8Bit (whether blockwise8 is built), and
//   void operator()(V32 gradient, V32& master, V32& first, V32& second, V32& third) const
// or, to have it done part by part, a type Rest and what AdamRule has (Decay, Begin, Divide, End).
// It may use only operations that round once (Add, Sub, Mul, Div, Sqrt, QuotientOfRoot), never
// MulAdd, or the bits would depend on the target. RunUpdate is all that an optimizer calls.
// Included once per SIMD target by each optimizer; no state.
#include <cstring>

#include "server/optim/gradients.h"
#include "server/optim/optimizer.h"
#include "server/optim/registry.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "server/optim/kernels/tile_kernel-inl.h"

#if defined(LUWU_OPTIM_KERNELS_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_UPDATE_INL_H_
#undef LUWU_OPTIM_KERNELS_UPDATE_INL_H_
#else
#define LUWU_OPTIM_KERNELS_UPDATE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// All tiles of a range with one rule in one choice of formats.
template <class Rule, StatePrecision kPrecision, bool kSplit>
class RangeKernel {
 public:
  // By value: no store through `out` can alias the rule, so it stays in registers.
  HWY_NOINLINE static UpdateOutcome Run(const Rule rule, const RoundingKey key,
                                        const UpdateRange& range) {
    const SumArgs sources =
        MakeSumArgs(range.gradients, range.gradient_scale, range.held, range.held_dtype);
    NormLanes norm;
    const bool out_of_place = range.in.data[0] != range.out.data[0];
    for (uint64_t at = 0; at < range.count;) {
      const uint64_t first = range.first + at;
      TileArrays tile = ArraysAt(range, first);
      const bool stream = out_of_place && CanStream(tile);
      const uint64_t count = SpanAt(range, at, stream);
      tile.at = at;
      tile.count = count;
      if (count % kStep != 0) {
        RunPadded(rule, key, sources, tile, &norm);
      } else if (stream) {
        RunStreamed(rule, key, sources, tile, &norm);
      } else {
        Kernel<false>::Run(rule, key, sources, tile, &norm);
      }
      at += count;
    }
    hwy::FlushStream();  // before another thread is told of the result
    return Outcome(norm, sources, range.count);
  }

 private:
  template <bool kStream>
  using Kernel = TileKernel<Rule, kPrecision, kSplit, kStream>;
  using State = typename Kernel<false>::State;
  static constexpr uint32_t kArrays = State::kArrays;

  // Streamed arrays that are not fp32 pass through a scratch tile.
  static constexpr bool NeedsScratch() {
    for (uint32_t k = 0; k < kArrays; ++k) {
      if (State::Format(k) != StateFormat::kFloat32) return true;
    }
    return false;
  }

  // The next tile; or all whole tiles at once, where nothing has to be done at their borders.
  HWY_INLINE static uint64_t SpanAt(const UpdateRange& range, uint64_t at, bool stream) {
    const uint64_t first = range.first + at;
    const uint64_t left = range.count - at;
    const bool by_tile = State::kIs8 || (stream && NeedsScratch());
    if (!by_tile && first % kQuantBlock == 0 && left >= kQuantBlock) {
      return left / kQuantBlock * kQuantBlock;
    }
    return std::min(left, TileEnd(first) - first);
  }

  // Codes are followed by the scales of their blocks.
  HWY_INLINE static float* ScaleAt(std::byte* array, const UpdateRange& range, uint64_t first) {
    return AsFloats(array + AlignUp(range.shard_elements, 64)) + first / kQuantBlock +
           range.segment;
  }

  HWY_INLINE static TileArrays ArraysAt(const UpdateRange& range, uint64_t first) {
    TileArrays tile;
    tile.index = static_cast<uint32_t>(first);
    for (uint32_t k = 0; k < kArrays; ++k) {
      const uint64_t offset = first * FormatBytes(State::Format(k));
      tile.in[k] = range.in.data[k] + offset;
      tile.out[k] = range.out.data[k] + offset;
      if (State::kIs8 && k > 0) {
        tile.scale_in[k] = *ScaleAt(range.in.data[k], range, first);
        tile.scale_out[k] = ScaleAt(range.out.data[k], range, first);
      }
    }
    const uint64_t served_offset = first * DTypeBytes(range.served_dtype);
    if (kSplit) tile.served_in = range.served_in + served_offset;
    tile.served = range.served + served_offset;
    tile.served_dtype = range.served_dtype;
    // Not lines that have just been read, which the caches hold.
    const bool fresh = !kSplit || range.served != range.served_in;
    tile.stream_served = range.stream_served && fresh && IsAligned64(tile.served);
    return tile;
  }

  HWY_INLINE static bool CanStream(const TileArrays& tile) {
    for (uint32_t k = 0; k < kArrays; ++k) {
      if (!IsAligned64(tile.out[k])) return false;
    }
    return true;
  }

  // Arrays that are not fp32 are put together in the cache and then written past it.
  HWY_INLINE static void RunStreamed(const Rule& rule, const RoundingKey& key,
                                     const SumArgs& sources, const TileArrays& tile,
                                     NormLanes* norm) {
    alignas(64) std::byte scratch[kStateArraysMax][kQuantBlock * 2];
    TileArrays streamed = tile;
    for (uint32_t k = 0; k < kArrays; ++k) {
      if (State::Format(k) != StateFormat::kFloat32) streamed.out[k] = scratch[k];
    }
    Kernel<true>::Run(rule, key, sources, streamed, norm);
    for (uint32_t k = 0; k < kArrays; ++k) {
      if (State::Format(k) == StateFormat::kFloat32) continue;
      StreamTile(scratch[k], tile.count * FormatBytes(State::Format(k)), tile.out[k]);
    }
  }

  // A tile that is not a multiple of kStep, in zero-padded copies.
  HWY_NOINLINE static void RunPadded(const Rule& rule, const RoundingKey& key,
                                     const SumArgs& sources, const TileArrays& tile,
                                     NormLanes* norm) {
    alignas(64) float sum[kQuantBlock];
    alignas(64) std::byte state[kStateArraysMax][kQuantBlock * 4] = {};
    alignas(64) std::byte served[kQuantBlock * 4] = {};
    SumPadded(sources, tile.at, tile.count, sum);
    const GradientSource summed = {std::as_bytes(std::span(sum)).data(), DType::kFloat32};
    const SumArgs padded_sum =
        MakeSumArgs(std::span(&summed, 1), sources.scale, nullptr, DType::kFloat32);
    const uint64_t served_bytes = tile.count * DTypeBytes(tile.served_dtype);
    TileArrays padded = tile;
    padded.at = 0;
    padded.count = AlignUp(tile.count, kStep);
    for (uint32_t k = 0; k < kArrays; ++k) {
      std::memcpy(state[k], tile.in[k], tile.count * FormatBytes(State::Format(k)));
      padded.in[k] = padded.out[k] = state[k];
    }
    if (kSplit) std::memcpy(served, tile.served_in, served_bytes);
    padded.served_in = padded.served = served;
    padded.stream_served = false;
    Kernel<false>::Run(rule, key, padded_sum, padded, norm);
    for (uint32_t k = 0; k < kArrays; ++k) {
      std::memcpy(tile.out[k], state[k], tile.count * FormatBytes(State::Format(k)));
    }
    std::memcpy(tile.served, served, served_bytes);
  }
};

template <class Rule, bool kSplit>
HWY_INLINE UpdateOutcome RunWithMaster(const Rule& rule, StatePrecision precision,
                                       const RoundingKey& key, const UpdateRange& range) {
  if constexpr (Rule::kMoments > 0) {
    if (precision == StatePrecision::kBFloat16) {
      return RangeKernel<Rule, StatePrecision::kBFloat16, kSplit>::Run(rule, key, range);
    }
    if constexpr (Rule::kHas8Bit) {
      if (precision == StatePrecision::kBlockwise8) {
        return RangeKernel<Rule, StatePrecision::kBlockwise8, kSplit>::Run(rule, key, range);
      }
    }
  }
  return RangeKernel<Rule, StatePrecision::kFloat32, kSplit>::Run(rule, key, range);
}

template <class Rule>
HWY_INLINE UpdateOutcome RunUpdate(const Rule& rule, const OptimizerSpec& optimizer,
                                   uint64_t applied, const UpdateRange& range) {
  const RoundingKey key =
      MakeRoundingKey(optimizer.rounding_seed, applied, range.job_element - range.first);
  if (optimizer.master_format == MasterFormat::kSplit) {
    return RunWithMaster<Rule, true>(rule, optimizer.state_precision, key, range);
  }
  return RunWithMaster<Rule, false>(rule, optimizer.state_precision, key, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
