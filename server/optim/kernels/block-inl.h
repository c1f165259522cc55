// A block: four vectors, the unit of the kernels' loops. Loads a block of gradient of any dtype,
// adds sources in order, and notices non-finite values. Ranges that end inside a block go through
// a zero-padded copy, so that a value's bits never depend on its position or on the length.
// Included once per SIMD target by the kernels; no state.
#include <algorithm>
#include <cstring>
#include <span>

#include "server/optim/optimizer.h"

#include <hwy/highway.h>

#include "server/optim/kernels/half-inl.h"

#if defined(LUWU_OPTIM_KERNELS_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_BLOCK_INL_H_
#undef LUWU_OPTIM_KERNELS_BLOCK_INL_H_
#else
#define LUWU_OPTIM_KERNELS_BLOCK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr uint64_t kBlockElementsMax = 4 * hn::MaxLanes(F32());
HWY_INLINE uint64_t BlockElements() { return 4 * hn::Lanes(F32()); }

HWY_INLINE const float* AsFloats(const std::byte* data) {
  return static_cast<const float*>(static_cast<const void*>(data));
}
HWY_INLINE const uint16_t* AsHalves(const std::byte* data) {
  return static_cast<const uint16_t*>(static_cast<const void*>(data));
}
HWY_INLINE uint16_t* AsHalves(std::byte* data) {
  return static_cast<uint16_t*>(static_cast<void*>(data));
}
HWY_INLINE float* AsFloats(std::byte* data) {
  return static_cast<float*>(static_cast<void*>(data));
}

HWY_INLINE const uint8_t* AsCodes(const std::byte* data) {
  return static_cast<const uint8_t*>(static_cast<const void*>(data));
}
HWY_INLINE uint8_t* AsCodes(std::byte* data) {
  return static_cast<uint8_t*>(static_cast<void*>(data));
}

struct Block {
  V32 a, b, c, e;
};

HWY_INLINE Block LoadBFloat16Block(const std::byte* data) {
  const uint64_t n = hn::Lanes(F32());
  const uint16_t* from = AsHalves(data);
  return {LoadBFloat16(from), LoadBFloat16(from + n), LoadBFloat16(from + 2 * n),
          LoadBFloat16(from + 3 * n)};
}

// The block from element `at` of a source.
HWY_INLINE Block LoadBlock(const GradientSource& source, uint64_t at) {
  const F32 d;
  const uint64_t n = hn::Lanes(d);
  if (source.dtype == DType::kFloat32) {
    const float* from = AsFloats(source.data) + at;
    return {hn::LoadU(d, from), hn::LoadU(d, from + n), hn::LoadU(d, from + 2 * n),
            hn::LoadU(d, from + 3 * n)};
  }
  if (source.dtype == DType::kBFloat16) return LoadBFloat16Block(source.data + 2 * at);
  const uint16_t* from = AsHalves(source.data) + at;
  return {LoadFloat16(from), LoadFloat16(from + n), LoadFloat16(from + 2 * n),
          LoadFloat16(from + 3 * n)};
}

HWY_INLINE Block Add(const Block& x, const Block& y) {
  return {hn::Add(x.a, y.a), hn::Add(x.b, y.b), hn::Add(x.c, y.c), hn::Add(x.e, y.e)};
}

HWY_INLINE Block Scale(const Block& x, V32 factor) {
  return {hn::Mul(x.a, factor), hn::Mul(x.b, factor), hn::Mul(x.c, factor), hn::Mul(x.e, factor)};
}

// Two vectors' worth of elements as the even and the odd ones: the order in which 16-bit arrays
// come apart into 32-bit lanes without shuffles.
struct Pair {
  V32 even, odd;
};

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE Pair Deinterleave(V32 low, V32 high) { return {low, high}; }
HWY_INLINE V32 InterleaveLow(const Pair& x) { return x.even; }
HWY_INLINE V32 InterleaveHigh(const Pair& x) { return x.odd; }

#else

HWY_INLINE Pair Deinterleave(V32 low, V32 high) {
  const F32 d;
  return {hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)};
}

#if HWY_TARGET == HWY_AVX3
HWY_INLINE V32 InterleaveLow(const Pair& x) {
  const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return V32{_mm512_permutex2var_ps(x.even.raw, order, x.odd.raw)};
}
HWY_INLINE V32 InterleaveHigh(const Pair& x) {
  const __m512i order =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return V32{_mm512_permutex2var_ps(x.even.raw, order, x.odd.raw)};
}
#elif HWY_TARGET == HWY_AVX2
HWY_INLINE V32 InterleaveLow(const Pair& x) {
  const F32 d;
  return hn::ConcatLowerLower(d, hn::InterleaveUpper(d, x.even, x.odd),
                              hn::InterleaveLower(d, x.even, x.odd));
}
HWY_INLINE V32 InterleaveHigh(const Pair& x) {
  const F32 d;
  return hn::ConcatUpperUpper(d, hn::InterleaveUpper(d, x.even, x.odd),
                              hn::InterleaveLower(d, x.even, x.odd));
}
#else  // 128-bit vectors
HWY_INLINE V32 InterleaveLow(const Pair& x) { return hn::InterleaveLower(F32(), x.even, x.odd); }
HWY_INLINE V32 InterleaveHigh(const Pair& x) { return hn::InterleaveUpper(F32(), x.even, x.odd); }
#endif

#endif  // HWY_SCALAR

HWY_INLINE Pair Low(const Block& x) { return {x.a, x.b}; }
HWY_INLINE Pair High(const Block& x) { return {x.c, x.e}; }

// A block as two pairs, and back.
HWY_INLINE Block Deinterleave(const Block& x) {
  const Pair low = Deinterleave(x.a, x.b), high = Deinterleave(x.c, x.e);
  return {low.even, low.odd, high.even, high.odd};
}
HWY_INLINE Block Interleave(const Block& x) {
  const Pair low = {x.a, x.b}, high = {x.c, x.e};
  return {InterleaveLow(low), InterleaveHigh(low), InterleaveLow(high), InterleaveHigh(high)};
}

// Pairs of 16-bit values, the even one in the lower half of each lane.
HWY_INLINE hn::Vec<U32> LoadPairs16(const uint16_t* source) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, source[0] | uint32_t{source[1]} << 16);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint16_t, U32>(), source));
#endif
}
template <bool kStream = false>
HWY_INLINE void StorePairs16(hn::Vec<U32> pairs, uint16_t* target) {
#if HWY_TARGET == HWY_SCALAR
  target[0] = static_cast<uint16_t>(hn::GetLane(pairs));
  target[1] = static_cast<uint16_t>(hn::GetLane(pairs) >> 16);
#else
  const hn::Repartition<uint16_t, U32> d16;
  if constexpr (kStream) {
    hn::Stream(hn::BitCast(d16, pairs), d16, target);
  } else {
    hn::StoreU(hn::BitCast(d16, pairs), d16, target);
  }
#endif
}
// The upper halves of the lanes of two vectors.
HWY_INLINE hn::Vec<U32> UpperHalves(hn::Vec<U32> even, hn::Vec<U32> odd) {
  const U32 d;
  return hn::OrAnd(hn::ShiftRight<16>(even), odd, hn::Set(d, 0xFFFF0000u));
}

HWY_INLINE Pair LoadBFloat16Pair(const std::byte* data) {
  const U32 d;
  const auto bits = LoadPairs16(AsHalves(data));
  return {hn::BitCast(F32(), hn::ShiftLeft<16>(bits)),
          hn::BitCast(F32(), hn::And(bits, hn::Set(d, 0xFFFF0000u)))};
}
// In even and odd elements.
HWY_INLINE Block LoadBFloat16Pairs(const std::byte* data) {
  const Pair low = LoadBFloat16Pair(data), high = LoadBFloat16Pair(data + 4 * hn::Lanes(F32()));
  return {low.even, low.odd, high.even, high.odd};
}
HWY_INLINE Block SumBFloat16Pairs(std::span<const GradientSource> sources, uint64_t at) {
  Block sum = LoadBFloat16Pairs(sources[0].data + 2 * at);
  for (size_t k = 1; k < sources.size(); ++k) {
    sum = Add(sum, LoadBFloat16Pairs(sources[k].data + 2 * at));
  }
  return sum;
}

// ((g0 + g1) + g2) + ...; a single source is taken as it is, so that -0 stays -0.
HWY_INLINE Block SumBlock(std::span<const GradientSource> sources, uint64_t at) {
  Block sum = LoadBlock(sources[0], at);
  for (size_t k = 1; k < sources.size(); ++k) sum = Add(sum, LoadBlock(sources[k], at));
  return sum;
}

inline bool AreAllBFloat16(std::span<const GradientSource> sources) {
  for (const GradientSource& source : sources) {
    if (source.dtype != DType::kBFloat16) return false;
  }
  return true;
}

template <bool kStream>
HWY_INLINE void StoreVector(V32 value, float* target) {
  if constexpr (kStream) {
    hn::Stream(value, F32(), target);
  } else {
    hn::StoreU(value, F32(), target);
  }
}
template <bool kStream = false>
HWY_INLINE void StoreBlock(const Block& x, float* target) {
  const uint64_t n = hn::Lanes(F32());
  StoreVector<kStream>(x.a, target);
  StoreVector<kStream>(x.b, target + n);
  StoreVector<kStream>(x.c, target + 2 * n);
  StoreVector<kStream>(x.e, target + 3 * n);
}

// x - x is +0 for finite x and NaN otherwise: the bits of `seen` stay zero while all is finite.
HWY_INLINE V32 NoteNonFinite(const Block& x, V32 seen) {
  seen = hn::Or(seen, hn::Sub(x.a, x.a));
  seen = hn::Or(seen, hn::Sub(x.b, x.b));
  seen = hn::Or(seen, hn::Sub(x.c, x.c));
  return hn::Or(seen, hn::Sub(x.e, x.e));
}
HWY_INLINE bool AnyNoted(V32 seen) {
  const U32 d;
  return !hn::AllTrue(d, hn::Eq(hn::BitCast(d, seen), hn::Zero(d)));
}

// The last `count` < block elements of a source, zero-padded to a block in `scratch`.
HWY_INLINE GradientSource PaddedTail(const GradientSource& source, uint64_t at, uint64_t count,
                                     std::byte* scratch) {
  const uint64_t bytes = source.dtype == DType::kFloat32 ? 4 : 2;
  std::memset(scratch, 0, kBlockElementsMax * bytes);
  std::memcpy(scratch, source.data + at * bytes, count * bytes);
  return {scratch, source.dtype};
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
