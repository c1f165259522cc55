// Division by a number that is the same in the whole loop, without the division unit: on CPUs with
// fused multiply-add, a product and two of them give the correctly rounded quotient (Brisebarre,
// Muller, Raina 2004: "Accelerating correctly rounded floating-point division when the divisor is
// known in advance", after Markstein), so the bits are those of a division. Included once per SIMD
// target by the kernels; no state.
#include <hwy/highway.h>

#include "server/optim/kernels/half-inl.h"

#if defined(LUWU_OPTIM_KERNELS_QUOTIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_QUOTIENT_INL_H_
#undef LUWU_OPTIM_KERNELS_QUOTIENT_INL_H_
#else
#define LUWU_OPTIM_KERNELS_QUOTIENT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// value / divisor. `inverse` is 1 / divisor rounded to fp32; the divisor lies in [2^-30, 1], the
// value is the square root of a float: 0, or between 2^-75 and 2^64 (so that nothing on the way
// over- or underflows), or infinite, or NaN.
HWY_INLINE V32 QuotientOfRoot(V32 value, V32 divisor, V32 inverse) {
#if HWY_ARCH_X86 && HWY_NATIVE_FMA
  const V32 quotient = hn::Mul(value, inverse);
  // NaN when the value is infinite. x86's minimum takes its second operand for a NaN, so that the
  // correction becomes finite and the quotient stays infinite.
  const V32 rest = hn::NegMulAdd(quotient, divisor, value);
  const V32 correction = hn::Min(rest, hn::Set(F32(), 0x1p60f));
  return hn::MulAdd(correction, inverse, quotient);
#else
  static_cast<void>(inverse);
  return hn::Div(value, divisor);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
