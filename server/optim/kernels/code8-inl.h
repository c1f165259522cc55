// The 8-bit state formats of docs/OPTIMIZERS.md, a pair of vectors at a time: how codes are
// decoded, and how values are rounded to them stochastically. Included once per SIMD target by the
// kernels; no state.
#include <algorithm>
#include <array>
#include <cstdint>

#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"
#include "server/optim/kernels/state-inl.h"

#if defined(LUWU_OPTIM_KERNELS_CODE8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_CODE8_INL_H_
#undef LUWU_OPTIM_KERNELS_CODE8_INL_H_
#else
#define LUWU_OPTIM_KERNELS_CODE8_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// An 8-bit code of `kBias` is the top of a float whose exponent has another bias: exponent 0 means
// multiples of the smallest step, as in IEEE 754, and 1.0 has exponent kBias and mantissa 0.
template <bool kSign>
struct Code8 {
  static constexpr uint32_t kBias = kSign ? 15 : 31;
  static constexpr uint32_t kOne = kBias << 3;
  static constexpr uint32_t kShiftedBias = (127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormalBits = kShiftedBias + (1u << 23);
};

#if HWY_TARGET == HWY_AVX3

// bf16 bits of the codes with exponent 0: multiples of the smallest step, 2^(1 - bias - 3).
template <bool kSign>
constexpr std::array<uint16_t, 32> SmallShares() {
  std::array<uint16_t, 32> bits = {};
  for (uint32_t m = 1; m < 8; ++m) {
    const uint32_t log = m >= 4 ? 2 : m >= 2 ? 1 : 0;
    const uint32_t exponent = 127 + 1 + log - Code8<kSign>::kBias - 3;
    bits[m] = static_cast<uint16_t>(exponent << 7 | (m << (7 - log) & 0x7F));
  }
  return bits;
}

// Values of codes as shares of the block's scale. All shares are bf16 numbers, so this is done in
// 16-bit lanes: a shift and the other bias for most codes, a table for those with exponent 0.
template <bool kSign>
HWY_INLINE Pair LoadShares(const uint8_t* codes) {
  alignas(64) static constexpr std::array<uint16_t, 32> kSmall = SmallShares<kSign>();
  constexpr uint16_t kBiasBits = Code8<kSign>::kShiftedBias >> 16;
  const __m256i bytes = hn::LoadU(hn::FixedTag<uint8_t, 32>(), codes).raw;
  const __m512i code = kSign ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes);
  const __m512i top = _mm512_slli_epi16(code, 4);  // exponent and mantissa where bf16 has them
  const __mmask32 is_small =
      _mm512_testn_epi16_mask(top, _mm512_set1_epi16(kSign ? 0x0780 : 0x0F80));
  // The biases have no bit in common with exponents: "or" adds them.
  const __m512i bias = _mm512_set1_epi16(kBiasBits);
  __m512i share = kSign ? _mm512_ternarylogic_epi32(top, _mm512_set1_epi16(0x07F0), bias, 0xEA)
                        : _mm512_or_si512(top, bias);
  const __m512i small = hn::Load(hn::ScalableTag<uint16_t>(), kSmall.data()).raw;
  share = _mm512_mask_permutexvar_epi16(share, is_small, code, small);
  if (kSign) {
    share = _mm512_ternarylogic_epi32(share, top, _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                      0xF8);  // share | top & sign
  }
  const __m512i odd = _mm512_and_si512(share, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
  return {V32{_mm512_castsi512_ps(_mm512_slli_epi32(share, 16))}, V32{_mm512_castsi512_ps(odd)}};
}

// min(|x|, 1) and max(|x|, y), y not negative, in one instruction each.
HWY_INLINE V32 MagnitudeUpTo1(V32 x) {
  return V32{_mm512_range_ps(x.raw, _mm512_set1_ps(1.0f), 0xA)};
}
HWY_INLINE V32 MaxMagnitude(V32 x, V32 y) { return V32{_mm512_range_ps(x.raw, y.raw, 0xB)}; }

// Halves of `x`, which have a sign at bit 11 and 7 bits at the bottom, as bytes.
HWY_INLINE VU SignToTopOfByte(VU x) {
  // Sums of adjacent bytes after multiplication: the sign, bit 3 of its byte, goes to bit 7.
  return VU{_mm512_maddubs_epi16(x.raw, _mm512_set1_epi16(0x1001))};
}

// Two vectors of pairs, one byte in each half.
HWY_INLINE void StoreCodes(VU low, VU high, uint8_t* codes) {
  const __m512i packed = _mm512_packus_epi16(low.raw, high.raw);
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const hn::ScalableTag<uint8_t> d;
  hn::StoreU(hn::Vec<decltype(d)>{_mm512_permutexvar_epi64(order, packed)}, d, codes);
}

#else  // not AVX-512

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
HWY_INLINE void StoreCodes(VU low, VU high, uint8_t* codes) {
  StoreCodes(low, codes);
  StoreCodes(high, codes + 2 * hn::Lanes(U32()));
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
HWY_INLINE Pair LoadShares(const uint8_t* from) {
  const U32 d;
  const VU codes = LoadCodes(from);
  if constexpr (kSign) {
    return {ShareOfSigned(hn::ShiftLeft<24>(codes)), ShareOfSigned(hn::ShiftLeft<8>(codes))};
  } else {
    const auto odd = hn::And(hn::ShiftLeft<4>(codes), hn::Set(d, 0x0FF00000));
    return {ShareOfMagnitude<false>(hn::ShiftLeft<20>(codes)), ShareOfMagnitude<false>(odd)};
  }
}

HWY_INLINE V32 MagnitudeUpTo1(V32 x) { return hn::Min(hn::Abs(x), hn::Set(F32(), 1.0f)); }
HWY_INLINE V32 MaxMagnitude(V32 x, V32 y) { return hn::Max(hn::Abs(x), y); }

// Halves of `x`, which have a sign at bit 11 and 7 bits at the bottom, as bytes.
HWY_INLINE VU SignToTopOfByte(VU x) {
  const U32 d;
  const VU magnitude = hn::And(x, hn::Set(d, 0x007F007F));
  return hn::OrAnd(magnitude, hn::ShiftRight<4>(x), hn::Set(d, 0x00800080));
}

#endif  // AVX-512

// Halves of `x` up to `most`; but 1 for 0 where `y` is not 0.
HWY_INLINE VU Between1And(VU x, VU y, uint16_t most) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  const auto bound = [most](uint32_t a, uint32_t b) {
    return std::max(std::min<uint32_t>(a, most), std::min(b, 1u));
  };
  const uint32_t a = hn::GetLane(x), b = hn::GetLane(y);
  return hn::Set(d, bound(a & 0xFFFF, b & 0xFFFF) | bound(a >> 16, b >> 16) << 16);
#else
  const hn::Repartition<uint16_t, U32> d16;
  const auto one = hn::Min(hn::BitCast(d16, y), hn::Set(d16, 1));
  const auto bound = hn::Min(hn::BitCast(d16, x), hn::Set(d16, most));
  return hn::BitCast(d, hn::Max(bound, one));
#endif
}

// Bits of value * inverse, whose magnitude is at most 1 but for rounding, as a code whose exponent
// has the bias of a float, with 20 bits behind the code; to those a random number is added.
template <bool kSign>
HWY_INLINE VU RoundShare(V32 value, V32 inverse, VU random20) {
  const F32 d;
  const U32 du;
  const V32 share = hn::Mul(value, inverse);
  const V32 magnitude = kSign ? MagnitudeUpTo1(share) : share;
  // A small one is a multiple of the smallest step: a float of exponent 1 when one smallest normal
  // is added, of exponent 0 when that is halved. For others this line lies below. Halving is exact:
  // the sum rounds once, fused or not.
  const V32 half_smallest =
      hn::BitCast(d, hn::Set(du, Code8<kSign>::kSmallestNormalBits - (1u << 23)));
  const V32 fixed = hn::MulAdd(magnitude, hn::Set(d, 0.5f), half_smallest);
  const VU rounded = hn::Add(hn::BitCast(du, hn::Max(magnitude, fixed)), random20);
  return kSign ? hn::OrAnd(rounded, hn::BitCast(du, value), hn::Set(du, 0x80000000u)) : rounded;
}

// Codes in 16-bit halves. 20 bits fall away: the random word's lower 20 are added to those of the
// even value, its upper 20 to those of the odd one.
template <bool kSign>
HWY_INLINE VU Encode8(const Pair& value, V32 inverse, VU random) {
  using C = Code8<kSign>;
  const U32 d;
  const VU even = RoundShare<kSign>(value.even, inverse, hn::And(random, hn::Set(d, 0x000FFFFF)));
  const VU odd = RoundShare<kSign>(value.odd, inverse, hn::ShiftRight<12>(random));
  const VU floats =
      hn::OrAnd(hn::ShiftRight<20>(even), hn::ShiftRight<4>(odd), hn::Set(d, 0xFFFF0000u));
  const VU pairs = Sub16(floats, hn::Set(d, (C::kShiftedBias >> 20) * 0x00010001));
  if constexpr (kSign) return SignToTopOfByte(pairs);
  // Bits below 2^-133 are not looked at.
  const VU tops = UpperHalves(hn::BitCast(d, value.even), hn::BitCast(d, value.odd));
  return Between1And(pairs, tops, C::kOne);
}

// The scale of a block whose largest magnitude is `largest`: kept away from numbers whose inverse
// or whose smallest step fp32 does not have.
HWY_INLINE float ScaleOfBlock(float largest) {
  constexpr float kLeast = 0x1p-100f;
  constexpr float kMost = 3.402823466e38f;
  if (!(largest > kLeast)) return kLeast;
  return largest < kMost ? largest : kMost;
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
