// The rule of adamw.h. Included once per SIMD target by adamw.cc and adamw_amsgrad.cc; no state.
#include "server/optim/adamw.h"

#include <hwy/highway.h>

#include "server/optim/kernels/quotient-inl.h"
#include "server/optim/kernels/update-inl.h"

#if defined(LUWU_OPTIM_KERNELS_ADAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_ADAM_INL_H_
#undef LUWU_OPTIM_KERNELS_ADAM_INL_H_
#else
#define LUWU_OPTIM_KERNELS_ADAM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kAmsgrad>
struct AdamRule {
  static constexpr uint32_t kMoments = kAmsgrad ? 3 : 2;
  static constexpr bool kHas8Bit = !kAmsgrad;
  static constexpr StateRole kRoles[3] = {StateRole::kSigned, StateRole::kUnsigned,
                                          StateRole::kUnsigned};
  const AdamScalars scalars;

  struct Rest {
    V32 step, root;
  };

  HWY_INLINE void Decay(Pair* gradient, Pair* master) const {
    const F32 d;
    const V32 decay = hn::Set(d, scalars.decay);
    *master = {hn::Mul(master->even, decay), hn::Mul(master->odd, decay)};
    if (scalars.has_l2) {
      const V32 l2 = hn::Set(d, scalars.l2);
      gradient->even = hn::Add(gradient->even, hn::Mul(master->even, l2));
      gradient->odd = hn::Add(gradient->odd, hn::Mul(master->odd, l2));
    }
  }
  HWY_INLINE void Begin(V32 gradient, V32& mean, V32& square, V32& largest, Rest& rest) const {
    const F32 d;
    square = hn::Add(hn::Mul(square, hn::Set(d, scalars.beta2)),
                     hn::Mul(hn::Mul(hn::Set(d, scalars.one_minus_beta2), gradient), gradient));
    if constexpr (kAmsgrad) largest = hn::Max(largest, square);
    // The division unit, which also makes square roots, is what this loop waits for.
    rest.root = hn::Sqrt(kAmsgrad ? largest : square);
    mean = hn::Add(hn::Mul(mean, hn::Set(d, scalars.beta1)),
                   hn::Mul(hn::Set(d, scalars.one_minus_beta1), gradient));
    rest.step = hn::Mul(hn::Set(d, scalars.minus_step_size), mean);
  }
  HWY_INLINE void Divide(Rest& rest) const {
    const F32 d;
    const V32 root = QuotientOfRoot(rest.root, hn::Set(d, scalars.bias2_root),
                                    hn::Set(d, scalars.inverse_bias2_root));
    rest.step = hn::Div(rest.step, hn::Add(root, hn::Set(d, scalars.eps)));
  }
  HWY_INLINE void End(const Rest& rest, V32& master) const { master = hn::Add(master, rest.step); }
};

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
