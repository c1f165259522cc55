#include "server/optim/lion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/lion.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/update-inl.h"

// Outside the per-target namespaces: one definition for all of them.
#ifndef LUWU_OPTIM_LION_SCALARS_
#define LUWU_OPTIM_LION_SCALARS_
namespace luwu::optim {

struct LionScalars {
  float lr = 0;
  float weight_decay = 0;
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
};

}  // namespace luwu::optim
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

struct LionRule {
  static constexpr uint32_t kMoments = 1;
  static constexpr bool kHas8Bit = true;
  static constexpr StateRole kRoles[1] = {StateRole::kSigned};
  const LionScalars scalars;

  HWY_INLINE void operator()(V32 gradient, V32& master, V32& mean, V32& /*unused*/,
                             V32& /*unused*/) const {
    const F32 d;
    const V32 mixed = hn::Add(hn::Mul(hn::Set(d, scalars.beta1), mean),
                              hn::Mul(hn::Set(d, scalars.one_minus_beta1), gradient));
    const V32 one = hn::CopySign(hn::Set(d, 1.0f), mixed);
    const V32 sign = hn::IfThenElseZero(hn::Ne(mixed, hn::Zero(d)), one);
    const V32 step = hn::Add(sign, hn::Mul(hn::Set(d, scalars.weight_decay), master));
    master = hn::Sub(master, hn::Mul(hn::Set(d, scalars.lr), step));
    mean = hn::Add(hn::Mul(hn::Set(d, scalars.beta2), mean),
                   hn::Mul(hn::Set(d, scalars.one_minus_beta2), gradient));
  }
};

UpdateOutcome UpdateLion(const LionScalars& scalars, const OptimizerSpec& optimizer,
                         uint64_t applied, const UpdateRange& range) {
  return RunUpdate(LionRule{scalars}, optimizer, applied, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(UpdateLion);

Moments LionMoments(const OptimizerSpec&) { return {1, {StateRole::kSigned}}; }

UpdateOutcome ApplyLion(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                        uint64_t applied, const UpdateRange& range) {
  LionScalars scalars;
  scalars.lr = static_cast<float>(hyper.lr);
  scalars.weight_decay = static_cast<float>(hyper.weight_decay);
  scalars.beta1 = static_cast<float>(hyper.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  scalars.beta2 = static_cast<float>(hyper.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  return HWY_DYNAMIC_DISPATCH(UpdateLion)(scalars, optimizer, applied, range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
