#include "server/optim/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/sgd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/update-inl.h"

// Outside the per-target namespaces: one definition for all of them.
#ifndef LUWU_OPTIM_SGD_SCALARS_
#define LUWU_OPTIM_SGD_SCALARS_
namespace luwu::optim {

struct SgdScalars {
  float lr = 0;
  float weight_decay = 0;  // 0: not added at all
  float momentum = 0;      // 0: the buffer is neither used nor changed
  float one_minus_dampening = 1;
  bool first = false;
  bool nesterov = false;
};

}  // namespace luwu::optim
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

template <bool kMomentum>
struct SgdRule {
  static constexpr uint32_t kMoments = kMomentum ? 1 : 0;
  static constexpr bool kHas8Bit = true;
  static constexpr StateRole kRoles[1] = {StateRole::kSigned};
  const SgdScalars scalars;

  HWY_INLINE void operator()(V32 gradient, V32& master, V32& buffer, V32& /*unused*/,
                             V32& /*unused*/) const {
    const F32 d;
    if (scalars.weight_decay != 0) {
      gradient = hn::Add(gradient, hn::Mul(hn::Set(d, scalars.weight_decay), master));
    }
    if (kMomentum && scalars.momentum != 0) {
      const V32 momentum = hn::Set(d, scalars.momentum);
      if (scalars.first) {
        buffer = gradient;
      } else {
        buffer = hn::Add(hn::Mul(buffer, momentum),
                         hn::Mul(hn::Set(d, scalars.one_minus_dampening), gradient));
      }
      gradient = scalars.nesterov ? hn::Add(gradient, hn::Mul(momentum, buffer)) : buffer;
    }
    master = hn::Sub(master, hn::Mul(hn::Set(d, scalars.lr), gradient));
  }
};

UpdateOutcome UpdateSgd(const SgdScalars& scalars, const OptimizerSpec& optimizer, uint64_t applied,
                        const UpdateRange& range) {
  if (optimizer.sgd_momentum) {
    return RunUpdate(SgdRule<true>{scalars}, optimizer, applied, range);
  }
  return RunUpdate(SgdRule<false>{scalars}, optimizer, applied, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(UpdateSgd);

Moments SgdMoments(const OptimizerSpec& optimizer) {
  return {optimizer.sgd_momentum ? 1u : 0u, {StateRole::kSigned}};
}

UpdateOutcome ApplySgd(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                       uint64_t applied, const UpdateRange& range) {
  SgdScalars scalars;
  scalars.lr = static_cast<float>(hyper.lr);
  scalars.weight_decay = static_cast<float>(hyper.weight_decay);
  scalars.momentum = static_cast<float>(hyper.momentum);
  scalars.one_minus_dampening = static_cast<float>(1 - hyper.dampening);
  scalars.first = applied == 0;
  scalars.nesterov = hyper.nesterov;
  return HWY_DYNAMIC_DISPATCH(UpdateSgd)(scalars, optimizer, applied, range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
