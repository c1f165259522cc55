#include "server/optim/adagrad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/adagrad.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/update-inl.h"

// Outside the per-target namespaces: one definition for all of them.
#ifndef LUWU_OPTIM_ADAGRAD_SCALARS_
#define LUWU_OPTIM_ADAGRAD_SCALARS_
namespace luwu::optim {

struct AdagradScalars {
  float weight_decay = 0;
  float eps = 0;
  float minus_step_size = 0;  // -lr / (1 + (t - 1) * lr_decay)
};

}  // namespace luwu::optim
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

struct AdagradRule {
  static constexpr uint32_t kMoments = 1;
  static constexpr bool kHas8Bit = true;
  static constexpr StateRole kRoles[1] = {StateRole::kUnsigned};
  const AdagradScalars scalars;

  HWY_INLINE void operator()(V32 gradient, V32& master, V32& sum, V32& /*unused*/,
                             V32& /*unused*/) const {
    const F32 d;
    if (scalars.weight_decay != 0) {
      gradient = hn::Add(gradient, hn::Mul(hn::Set(d, scalars.weight_decay), master));
    }
    sum = hn::Add(sum, hn::Mul(gradient, gradient));
    const V32 denominator = hn::Add(hn::Sqrt(sum), hn::Set(d, scalars.eps));
    const V32 step = hn::Mul(hn::Set(d, scalars.minus_step_size), gradient);
    master = hn::Add(master, hn::Div(step, denominator));
  }
};

UpdateOutcome UpdateAdagrad(const AdagradScalars& scalars, const OptimizerSpec& optimizer,
                            uint64_t applied, const UpdateRange& range) {
  return RunUpdate(AdagradRule{scalars}, optimizer, applied, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(UpdateAdagrad);

Moments AdagradMoments(const OptimizerSpec&) { return {1, {StateRole::kUnsigned}}; }

UpdateOutcome ApplyAdagrad(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                           uint64_t applied, const UpdateRange& range) {
  AdagradScalars scalars;
  scalars.weight_decay = static_cast<float>(hyper.weight_decay);
  scalars.eps = static_cast<float>(hyper.eps);
  const double slowed = 1 + static_cast<double>(applied) * hyper.lr_decay;
  scalars.minus_step_size = static_cast<float>(-(hyper.lr / slowed));
  return HWY_DYNAMIC_DISPATCH(UpdateAdagrad)(scalars, optimizer, applied, range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
