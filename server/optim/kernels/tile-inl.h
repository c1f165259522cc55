// Tiles and steps. A tile is up to 256 elements, cut at multiples of 256 of the shard, so that it
// is also a block of the 8-bit formats. Within a tile, kernels go block by block (four vectors):
// the sum of the gradients, the rule and the served copy of a block stay in registers and are few
// enough instructions for the CPU to overlap them with those of the next. Included once per SIMD
// target by the kernels; no state.
#include <cstdint>

#include "server/optim/optimizer.h"

#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"
#include "server/optim/kernels/state-inl.h"

#if defined(LUWU_OPTIM_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_TILE_INL_H_
#undef LUWU_OPTIM_KERNELS_TILE_INL_H_
#else
#define LUWU_OPTIM_KERNELS_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Kernels work on whole steps; tiles that are not a multiple of it are padded with zeros.
inline constexpr uint64_t kStep = 64;
// With many sources the hardware prefetchers lose track of the streams: then lines are asked for
// this far ahead, into the second-level cache, since sources on page boundaries share the sets of
// the first. With few of them that is only more work.
inline constexpr uint64_t kPrefetchElements = 2 * kQuantBlock;
inline constexpr size_t kPrefetchSourcesMin = 6;

struct NormLanes {
  alignas(64) double lanes[8] = {};
};

// The sources of a range and what becomes of their sum.
struct SumArgs {
  std::span<const GradientSource> gradients;
  float scale = 1;
  std::byte* held = nullptr;  // at the same element as the sources
  DType held_dtype = DType::kFloat32;
  bool all_bfloat16 = false;  // the sources: the usual case, which has a shorter loop
  bool stream_held = false;   // past the caches; not when it is a source as well, and cached
};

inline SumArgs MakeSumArgs(std::span<const GradientSource> gradients, float scale, std::byte* held,
                           DType held_dtype) {
  return {gradients, scale, held, held_dtype, AreAllBFloat16(gradients), held != gradients[0].data};
}

// Out of line, in tile.cc: what the usual pass does not need.
//
// Writes `count` <= kQuantBlock elements of `sum` to `held` at element `at`, and rounds `sum` to
// what was written.
void HoldPart(const SumArgs& args, uint64_t at, uint64_t count, float* sum);
void HoldBlock(const SumArgs& args, uint64_t at, Block* sum);
// The unscaled sum of `count` elements from `at`, with zeros up to a multiple of kStep; held.
void SumPadded(const SumArgs& args, uint64_t at, uint64_t count, float* sum);
// Copies past the caches; both on 64 bytes, `bytes` a multiple of 64.
void StreamTile(const std::byte* source, uint64_t bytes, std::byte* target);
// Of a range whose squares are in `norm`.
UpdateOutcome Outcome(const NormLanes& norm, const SumArgs& args, uint64_t count);

HWY_INLINE uint64_t TileEnd(uint64_t element) { return (element / kQuantBlock + 1) * kQuantBlock; }

HWY_INLINE bool IsAligned64(const std::byte* data) {
  uintptr_t address = 0;
  std::memcpy(&address, &data, sizeof(address));
  return address % 64 == 0;
}

// The lines of `kStep` elements of `kBytes` bytes each, kPrefetchElements after `data`. Addresses
// behind the end of an array are harmless.
template <uint64_t kBytes>
HWY_INLINE void PrefetchStep(const std::byte* data) {
  for (uint64_t line = 0; line < kStep * kBytes; line += 64) {
    __builtin_prefetch(data + kPrefetchElements * kBytes + line, 0, 2);
  }
}

using F64 = hn::ScalableTag<double>;

// The lanes of a norm in registers, while a kernel runs.
struct NormVectors {
  static constexpr uint64_t kLanes = hn::MaxLanes(F64());
  hn::Vec<F64> v[8 / kLanes];
};
HWY_INLINE void Load(const NormLanes& norm, NormVectors* vectors) {
  for (uint64_t k = 0; k < 8; k += NormVectors::kLanes) {
    vectors->v[k / NormVectors::kLanes] = hn::Load(F64(), norm.lanes + k);
  }
}
HWY_INLINE void Store(const NormVectors& vectors, NormLanes* norm) {
  for (uint64_t k = 0; k < 8; k += NormVectors::kLanes) {
    hn::Store(vectors.v[k / NormVectors::kLanes], F64(), norm->lanes + k);
  }
}

// Squares of fp32 are exact in double, so a fused multiply-add rounds once like an addition.
HWY_INLINE void AddSquare(hn::Vec<F64> x, hn::Vec<F64>* sum) { *sum = hn::MulAdd(x, x, *sum); }

// Of a pair of vectors whose first elements go to lane `lane`.
HWY_INLINE void AddSquares(const Pair& x, uint64_t lane, NormVectors* norm) {
  const F64 d;
#if HWY_TARGET == HWY_SCALAR
  AddSquare(hn::PromoteTo(d, x.even), &norm->v[lane]);
  AddSquare(hn::PromoteTo(d, x.odd), &norm->v[lane]);
#else
  const hn::Half<F32> half;
  constexpr uint64_t n = NormVectors::kLanes;
  auto* low = &norm->v[lane / n];
  auto* high = &norm->v[(lane + n) % 8 / n];
  AddSquare(hn::PromoteTo(d, hn::LowerHalf(half, x.even)), low);
  AddSquare(hn::PromoteTo(d, hn::LowerHalf(half, x.odd)), low);
  AddSquare(hn::PromoteTo(d, hn::UpperHalf(half, x.even)), high);
  AddSquare(hn::PromoteTo(d, hn::UpperHalf(half, x.odd)), high);
#endif
}

// Of the block of two pairs that begins at `element` of its tile.
HWY_INLINE void AddBlockSquares(const Block& x, uint64_t element, NormVectors* norm) {
  constexpr uint64_t n = hn::MaxLanes(F32());
  const uint64_t lane = n == 1 ? element / 2 % 8 : 0;  // longer blocks begin at lane 0
  AddSquares({x.a, x.b}, lane, norm);
  AddSquares({x.c, x.e}, (lane + n) % 8, norm);
}

HWY_INLINE void PrefetchSources(std::span<const GradientSource> sources, uint64_t at) {
  for (const GradientSource& source : sources) {
    if (source.dtype == DType::kFloat32) {
      PrefetchStep<4>(source.data + at * 4);
    } else {
      PrefetchStep<2>(source.data + at * 2);
    }
  }
}

HWY_INLINE void HoldFloats(const SumArgs& args, uint64_t at, const Block& sum) {
  float* to = AsFloats(args.held) + at;
  if (args.stream_held && IsAligned64(args.held + at * sizeof(float))) {
    StoreBlock<true>(sum, to);
  } else {
    StoreBlock<false>(sum, to);
  }
}

// The scaled sum of the block at element `at` of the sources, `element` of its tile; kPaired: as
// two pairs.
template <bool kPaired>
HWY_INLINE Block TakeSum(const SumArgs& args, uint64_t at, uint64_t element, NormVectors* norm) {
  const V32 scale = hn::Set(F32(), args.scale);  // times 1 changes no bit
  if (HWY_LIKELY(args.all_bfloat16 && args.held == nullptr)) {
    const Block pairs = Scale(SumBFloat16Pairs(args.gradients, at), scale);
    AddBlockSquares(pairs, element, norm);
    return kPaired ? pairs : Interleave(pairs);
  }
  Block sum = args.all_bfloat16 ? Interleave(SumBFloat16Pairs(args.gradients, at))
                                : SumBlock(args.gradients, at);
  if (args.held != nullptr) {
    if (args.held_dtype == DType::kFloat32) {
      HoldFloats(args, at, sum);
    } else {
      Block rounded = sum;  // a copy, so that `sum` itself can stay in registers
      HoldBlock(args, at, &rounded);
      sum = rounded;
    }
  }
  sum = Scale(sum, scale);
  const Block pairs = Deinterleave(sum);
  AddBlockSquares(pairs, element, norm);
  return kPaired ? pairs : sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
