// The 16-bit state formats of docs/OPTIMIZERS.md, a pair of vectors at a time: how values are
// decoded, and how they are rounded stochastically. Everything is bit manipulation that gives the
// same result on every target. Included once per SIMD target by the kernels; no state.
#include <cstdint>

#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"
#include "server/optim/kernels/random-inl.h"

#if defined(LUWU_OPTIM_KERNELS_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_STATE_INL_H_
#undef LUWU_OPTIM_KERNELS_STATE_INL_H_
#else
#define LUWU_OPTIM_KERNELS_STATE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As bf16. The lower 16 bits are the chance of rounding away from zero. Infinities stay.
HWY_INLINE VU RoundToBFloat16(const Pair& value, VU random) {
  const U32 d;
  const auto even = hn::Add(hn::BitCast(d, value.even), hn::And(random, hn::Set(d, 0xFFFF)));
  const auto odd = hn::Add(hn::BitCast(d, value.odd), hn::ShiftRight<16>(random));
  return UpperHalves(even, odd);
}

// Of 16-bit halves, modulo 2^16.
HWY_INLINE VU Add16(VU x, VU y) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  const auto low = hn::Set(d, 0xFFFF), high = hn::Set(d, 0xFFFF0000u);
  return hn::Or(hn::And(hn::Add(x, y), low), hn::Add(hn::And(x, high), hn::And(y, high)));
#else
  const hn::Repartition<uint16_t, U32> d16;
  return hn::BitCast(d, hn::Add(hn::BitCast(d16, x), hn::BitCast(d16, y)));
#endif
}
HWY_INLINE VU Sub16(VU x, VU y) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  const auto low = hn::Set(d, 0xFFFF), high = hn::Set(d, 0xFFFF0000u);
  return hn::Or(hn::And(hn::Sub(x, y), low), hn::Sub(hn::And(x, high), hn::And(y, high)));
#else
  const hn::Repartition<uint16_t, U32> d16;
  return hn::BitCast(d, hn::Sub(hn::BitCast(d16, x), hn::BitCast(d16, y)));
#endif
}
// The top bit of each half as 0 or 1.
HWY_INLINE VU TopBits16(VU x) { return hn::And(hn::ShiftRight<15>(x), hn::Set(U32(), 0x00010001)); }

// Split master: bits = (served << 16) + low, where the upper half of `low`'s range counts as
// negative, since the served copy was rounded up for it.
HWY_INLINE Pair LoadSplit(const uint16_t* served, const uint16_t* low) {
  const U32 d;
  const auto below = LoadPairs16(low);
  const auto high = Sub16(LoadPairs16(served), TopBits16(below));
  const auto upper = hn::Set(d, 0xFFFF0000u);
  const auto even = hn::OrAnd(hn::ShiftLeft<16>(high), below, hn::Set(d, 0xFFFF));
  return {hn::BitCast(F32(), even),
          hn::BitCast(F32(), hn::OrAnd(hn::ShiftRight<16>(below), high, upper))};
}

// NaN becomes the quiet one, which has no lower bits: rounding up would run into the sign.
HWY_INLINE VU BitsOfSplit(V32 value) {
  const U32 d;
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
  return hn::IfThenElse(is_nan, hn::Set(d, 0x7FC00000), hn::BitCast(d, value));
}
// kStream: the served copy goes past the caches; it lies on 64 bytes then.
template <bool kStream>
HWY_INLINE void StoreSplit(const Pair& value, uint16_t* served, uint16_t* low) {
  const U32 d;
  const auto even = BitsOfSplit(value.even), odd = BitsOfSplit(value.odd);
  const auto below = hn::OrAnd(hn::ShiftLeft<16>(odd), even, hn::Set(d, 0xFFFF));
  StorePairs16<kStream>(Add16(UpperHalves(even, odd), TopBits16(below)), served);
  StorePairs16(below, low);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
