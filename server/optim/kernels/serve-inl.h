// The served copy: masters converted to the dtype that workers fetch, a pair of vectors at a time.
// Included once per SIMD target by the kernels; no state.
#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"

#if defined(LUWU_OPTIM_KERNELS_SERVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_SERVE_INL_H_
#undef LUWU_OPTIM_KERNELS_SERVE_INL_H_
#else
#define LUWU_OPTIM_KERNELS_SERVE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// bf16 in the upper halves of the lanes, to nearest even; the lower halves are anything. Not NaN.
HWY_INLINE hn::Vec<U32> HighBFloat16(V32 value) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
#if HWY_TARGET == HWY_AVX3
  const __mmask16 odd = _mm512_test_epi32_mask(bits.raw, _mm512_set1_epi32(0x10000));
  const __m512i rounded = _mm512_add_epi32(bits.raw, _mm512_set1_epi32(0x7FFF));
  return hn::Vec<U32>{_mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1))};
#else
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  return hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd);
#endif
}

// Quiet NaNs that HighBFloat16 leaves as they are.
HWY_INLINE V32 WithShortNaN(V32 value) {
  const U32 d;
  const auto bits = hn::Or(hn::BitCast(d, value), hn::Set(d, 0x400000));
  const auto quiet = hn::BitCast(F32(), hn::And(bits, hn::Set(d, 0xFFFF0000u)));
  return hn::IfThenElse(hn::IsNaN(value), quiet, value);
}
HWY_INLINE Pair WithShortNaNs(const Pair& x) { return {WithShortNaN(x.even), WithShortNaN(x.odd)}; }
HWY_INLINE bool MayHoldNaN(const Pair& x) {
  return !hn::AllFalse(F32(), hn::IsNaN(hn::Add(x.even, x.odd)));
}
HWY_INLINE bool MayHoldNaN(const Pair& x, const Pair& y) {
  return MayHoldNaN({hn::Add(x.even, x.odd), hn::Add(y.even, y.odd)});
}

template <bool kStream>
HWY_INLINE void ServeInOrder(const Pair& x, uint16_t* target) {
#if HWY_TARGET == HWY_SCALAR
  StoreBFloat16(x.even, target);
  StoreBFloat16(x.odd, target + 1);
#else
  const hn::Repartition<uint16_t, U32> d;
  const auto pair =
      hn::ConcatOdd(d, hn::BitCast(d, HighBFloat16(x.odd)), hn::BitCast(d, HighBFloat16(x.even)));
  if constexpr (kStream) {
    hn::Stream(pair, d, target);
  } else {
    hn::StoreU(pair, d, target);
  }
#endif
}

// kStream asks for a target on 64 bytes, kPaired says that the pair is even and odd elements, not
// two vectors in order. For bf16, NaNs must be short.
template <bool kStream, bool kPaired>
HWY_INLINE void Serve(Pair x, DType dtype, std::byte* target) {
  if (HWY_LIKELY(dtype == DType::kBFloat16)) {
    if constexpr (kPaired) {
      StorePairs16<kStream>(UpperHalves(HighBFloat16(x.even), HighBFloat16(x.odd)),
                            AsHalves(target));
    } else {
      ServeInOrder<kStream>(x, AsHalves(target));
    }
    return;
  }
  if constexpr (kPaired) x = {InterleaveLow(x), InterleaveHigh(x)};
  const uint64_t n = hn::Lanes(F32());
  if (dtype == DType::kFloat32) {
    StoreVector<kStream>(x.even, AsFloats(target));
    StoreVector<kStream>(x.odd, AsFloats(target) + n);
  } else {
    StoreFloat16(x.even, AsHalves(target));
    StoreFloat16(x.odd, AsHalves(target) + n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
