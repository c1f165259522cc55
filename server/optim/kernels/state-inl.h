// State formats of docs/OPTIMIZERS.md, one vector at a time: how values are decoded, and how they
// are rounded stochastically. Everything is bit manipulation that gives the same result on every
// target. Included once per SIMD target by the kernels; no state.
//
// Random bits: 32 for each pair of elements of an array, the lower 16 for the first. They are a
// hash of the number of the pair's first element in the shard, under the array's key; pairs are
// counted from the beginning of the tile. The hash is a Weyl sequence that begins at one half of
// the key, and one round of xor-shift and multiplication with the other half of the key xored in
// between.
#include <cstdint>

#include "server/optim/rounding_key.h"

#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"

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

using VU = hn::Vec<U32>;

// Of the pairs whose first elements are index, index + 2, ...
HWY_INLINE VU RandomPairs(const RoundingKey::Array& key, uint32_t index) {
  constexpr uint32_t kWeyl = 0x9E3779B9u;
  const U32 d;
  const auto steps = hn::Mul(hn::Iota(d, 0), hn::Set(d, 2 * kWeyl));
  auto x = hn::Add(steps, hn::Set(d, key.first + index * kWeyl));
  x = hn::Xor3(x, hn::ShiftRight<16>(x), hn::Set(d, key.second));
  x = hn::Mul(x, hn::Set(d, 0x846CA68Bu));
  return hn::Xor(x, hn::ShiftRight<15>(x));
}

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

// Halves of `x`, but 1 for 0 where `y` is not 0.
HWY_INLINE VU AtLeastOneWhereNot0(VU x, VU y) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  const auto least = [](uint32_t a, uint32_t b) { return a == 0 && b != 0 ? 1u : a; };
  const uint32_t a = hn::GetLane(x), b = hn::GetLane(y);
  return hn::Set(d, least(a & 0xFFFF, b & 0xFFFF) | least(a >> 16, b >> 16) << 16);
#else
  const hn::Repartition<uint16_t, U32> d16;
  const auto one = hn::Min(hn::BitCast(d16, y), hn::Set(d16, 1));
  return hn::BitCast(d, hn::Max(hn::BitCast(d16, x), one));
#endif
}

// An 8-bit code of `kBias` is the top of a float whose exponent has another bias: exponent 0 means
// multiples of the smallest step, as in IEEE 754, and 1.0 has exponent kBias and mantissa 0.
template <bool kSign>
struct Code8 {
  static constexpr uint32_t kBias = kSign ? 15 : 31;
  static constexpr uint32_t kShiftedBias = (127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormalBits = kShiftedBias + (1u << 23);
};

// One byte in each 16-bit half.
HWY_INLINE VU LoadCodes(const uint8_t* codes) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, codes[0] | uint32_t{codes[1]} << 16);
#else
  const hn::Repartition<uint16_t, U32> d16;
  return hn::BitCast(d, hn::PromoteTo(d16, hn::LoadU(hn::Rebind<uint8_t, decltype(d16)>(), codes)));
#endif
}
HWY_INLINE void StoreCodes(VU pairs, uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  codes[0] = static_cast<uint8_t>(hn::GetLane(pairs));
  codes[1] = static_cast<uint8_t>(hn::GetLane(pairs) >> 16);
#else
  const hn::Repartition<int16_t, U32> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(d16, pairs)), d8, codes);
#endif
}

// `magnitude`: exponent and mantissa where those of a float are.
template <bool kSign>
HWY_INLINE V32 ShareOfMagnitude(VU magnitude) {
  using C = Code8<kSign>;
  const F32 d;
  const U32 du;
  const V32 normal = hn::BitCast(d, hn::Add(magnitude, hn::Set(du, C::kShiftedBias)));
  // Exponent 0 read like the others is 2^-kBias (1 + m / 8) and means twice m / 8 of that; for
  // greater exponents the same line lies above. Both are exact, fused or not.
  const V32 excess = hn::BitCast(d, hn::Set(du, C::kSmallestNormalBits));
  return hn::Min(normal, hn::MulSub(normal, hn::Set(d, 2.0f), excess));
}
// `code` in the upper byte, anything below.
HWY_INLINE V32 ShareOfSigned(VU code) {
  const U32 d;
  const auto magnitude = hn::And(hn::ShiftRight<4>(code), hn::Set(d, 0x07F00000));
  const auto share = hn::BitCast(d, ShareOfMagnitude<true>(magnitude));
  return hn::BitCast(F32(), hn::OrAnd(share, code, hn::Set(d, 0x80000000u)));
}

// Values of codes as shares of the block's scale.
template <bool kSign>
HWY_INLINE Pair Decode8(VU codes) {
  const U32 d;
  if constexpr (kSign) {
    return {ShareOfSigned(hn::ShiftLeft<24>(codes)), ShareOfSigned(hn::ShiftLeft<8>(codes))};
  } else {
    const auto odd = hn::And(hn::ShiftLeft<4>(codes), hn::Set(d, 0x0FF00000));
    return {ShareOfMagnitude<false>(hn::ShiftLeft<20>(codes)), ShareOfMagnitude<false>(odd)};
  }
}

// Bits of value * inverse, whose magnitude is at most 1 but for rounding, as a code whose exponent
// has the bias of a float, with 20 bits behind the code; then a random number is added to those.
template <bool kSign>
HWY_INLINE VU RoundMagnitude(V32 value, V32 inverse, VU random20) {
  using C = Code8<kSign>;
  const F32 d;
  const U32 du;
  const V32 share = hn::Mul(value, inverse);
  const V32 magnitude = hn::Min(kSign ? hn::Abs(share) : share, hn::Set(d, 1.0f));
  // A small one is a multiple of the smallest step: a float of exponent 1 when one smallest normal
  // is added, of exponent 0 when that is halved. For others this line lies below. Halving is exact:
  // the sum rounds once, fused or not.
  const V32 half_smallest = hn::BitCast(d, hn::Set(du, C::kSmallestNormalBits - (1u << 23)));
  const V32 fixed = hn::MulAdd(magnitude, hn::Set(d, 0.5f), half_smallest);
  return hn::Add(hn::BitCast(du, hn::Max(magnitude, fixed)), random20);
}

template <bool kSign>
HWY_INLINE void Encode8(const Pair& value, V32 inverse, VU random, uint8_t* codes) {
  const U32 d;
  // 20 bits fall away. The random bits stand on top of them, the half of the last of them behind,
  // so that their mean is that of 20 random bits.
  const auto mask = hn::Set(d, 0x000FFFF0), half = hn::Set(d, 8);
  const auto even =
      RoundMagnitude<kSign>(value.even, inverse, hn::OrAnd(half, hn::ShiftLeft<4>(random), mask));
  const auto odd =
      RoundMagnitude<kSign>(value.odd, inverse, hn::OrAnd(half, hn::ShiftRight<12>(random), mask));
  const auto bias = hn::Set(d, (Code8<kSign>::kShiftedBias >> 20) * 0x00010001);
  auto pairs = Sub16(
      hn::OrAnd(hn::ShiftRight<20>(even), hn::ShiftRight<4>(odd), hn::Set(d, 0xFFFF0000u)), bias);
  const auto tops = UpperHalves(hn::BitCast(d, value.even), hn::BitCast(d, value.odd));
  if constexpr (kSign) {
    pairs = hn::OrAnd(pairs, hn::ShiftRight<8>(tops), hn::Set(d, 0x00800080));
  } else {
    pairs = AtLeastOneWhereNot0(pairs, tops);
  }
  StoreCodes(pairs, codes);
}

// The scale of a block whose largest magnitude is `largest`: kept away from numbers whose inverse
// or whose smallest step fp32 does not have.
HWY_INLINE float ScaleOfBlock(float largest) {
  constexpr float kLeast = 0x1p-100f;
  constexpr float kMost = 3.402823466e38f;
  if (!(largest > kLeast)) return kLeast;
  return largest < kMost ? largest : kMost;
}

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
HWY_INLINE void StoreSplit(const Pair& value, uint16_t* served, uint16_t* low) {
  const U32 d;
  const auto even = BitsOfSplit(value.even), odd = BitsOfSplit(value.odd);
  const auto below = hn::OrAnd(hn::ShiftLeft<16>(odd), even, hn::Set(d, 0xFFFF));
  StorePairs16(Add16(UpperHalves(even, odd), TopBits16(below)), served);
  StorePairs16(below, low);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
