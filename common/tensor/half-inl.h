// bf16 and fp16 to and from fp32, one vector at a time: the one place that knows how, for the
// conversion loops of dtype_convert.cc and for the update kernels. Every target gives the bits of
// the scalar functions in dtype.h, NaN payloads included, whatever the thread's rounding of
// subnormals: hardware conversions are used only where they agree with the integer forms
// (AVX512-BF16 flushes subnormals and is not used). To nearest even; beyond fp16's range: infinity.
// Included once per SIMD target; no state.
#include <cstdint>

#include <hwy/highway.h>

#if defined(LUWU_TENSOR_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_TENSOR_HALF_INL_H_
#undef LUWU_TENSOR_HALF_INL_H_
#else
#define LUWU_TENSOR_HALF_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::half {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;  // as many lanes as F32

// Low halves of each lane, which must be below 65536.
HWY_INLINE void StoreLow16(hn::Vec<U32> bits, uint16_t* target) {
  hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), bits)), U16(), target);
}

HWY_INLINE V32 LoadBFloat16(const uint16_t* source) {
  const auto wide = hn::PromoteTo(U32(), hn::LoadU(U16(), source));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}

HWY_INLINE void StoreBFloat16(V32 value, uint16_t* target) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(d, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7FFF))));
  const auto quiet_nan = hn::Or(high, hn::Set(d, 0x40));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
  StoreLow16(hn::IfThenElse(is_nan, quiet_nan, rounded), target);
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // F16C: lower target values are better targets

using F16 = hn::Rebind<hwy::float16_t, F32>;

HWY_INLINE V32 LoadFloat16(const uint16_t* source) {
  return hn::PromoteTo(F32(), hn::BitCast(F16(), hn::LoadU(U16(), source)));
}

HWY_INLINE void StoreFloat16(V32 value, uint16_t* target) {
  hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), value)), U16(), target);
}

#else

// Both below 2^31, so that the signed comparison is right; the unsigned one is slow on SSE.
HWY_INLINE hn::Mask<U32> GreaterMagnitude(hn::Vec<U32> magnitude, uint32_t limit) {
  const I32 d;
  const auto limits = hn::Set(d, static_cast<int32_t>(limit));
  return hn::RebindMask(U32(), hn::Gt(hn::BitCast(d, magnitude), limits));
}

HWY_INLINE V32 LoadFloat16(const uint16_t* source) {
  const U32 d;
  const auto bits = hn::PromoteTo(d, hn::LoadU(U16(), source));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000)));
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(d, 112u << 23));
  // Subnormal: magnitude * 2^-24, as the exact difference of two normal floats, since a trainer may
  // have told its CPU to take subnormals for zero.
  const auto offset = hn::Set(d, 113u << 23);
  const auto difference =
      hn::Sub(hn::BitCast(F32(), hn::Add(shifted, offset)), hn::BitCast(F32(), offset));
  const auto special = hn::Or(shifted, hn::Set(d, 0x7F800000));  // infinity or NaN
  const auto quiet = hn::Or(special, hn::Set(d, 0x00400000));
  auto result =
      hn::IfThenElse(GreaterMagnitude(magnitude, 0x3FF), normal, hn::BitCast(d, difference));
  result = hn::IfThenElse(GreaterMagnitude(magnitude, 0x7BFF), special, result);
  result = hn::IfThenElse(GreaterMagnitude(magnitude, 0x7C00), quiet, result);
  return hn::BitCast(F32(), hn::Or(result, sign));
}

HWY_INLINE void StoreFloat16(V32 value, uint16_t* target) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));

  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const auto biased = hn::Sub(magnitude, hn::Set(d, (112u << 23) - 0xFFF));
  const auto normal = hn::ShiftRight<13>(hn::Add(biased, odd));

  // 0.5 has the unit in the last place of fp16's subnormals: the addition rounds.
  const auto half = hn::Set(d, 0x3F000000);
  const auto shifted = hn::Add(hn::BitCast(F32(), magnitude), hn::BitCast(F32(), half));
  const auto subnormal = hn::Sub(hn::BitCast(d, shifted), half);

  const auto infinity = hn::Set(d, 0x7C00);
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x3FF));
  const auto nan = hn::Or(payload, hn::Set(d, 0x7E00));

  const auto is_normal = GreaterMagnitude(magnitude, (113u << 23) - 1);
  const auto is_over = GreaterMagnitude(magnitude, (143u << 23) - 1);
  const auto is_nan = GreaterMagnitude(magnitude, 0x7F800000);
  auto result = hn::IfThenElse(is_normal, normal, subnormal);
  result = hn::IfThenElse(is_over, infinity, result);
  result = hn::IfThenElse(is_nan, nan, result);
  StoreLow16(hn::Or(result, sign), target);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace luwu::half
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
