#include "server/optim/adamw.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/adamw.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/update-inl.h"

// Outside the per-target namespaces: one definition for all of them.
#ifndef LUWU_OPTIM_ADAMW_SCALARS_
#define LUWU_OPTIM_ADAMW_SCALARS_
namespace luwu::optim {

struct AdamWScalars {
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float bias2_root = 1;  // sqrt(1 - beta2^t)
  float eps = 0;
  float minus_step_size = 0;  // -lr / (1 - beta1^t)
};

}  // namespace luwu::optim
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

struct AdamWRule {
  static constexpr uint32_t kStates = 3;
  const AdamWScalars scalars;

  HWY_INLINE void operator()(V32 gradient, V32& master, V32& mean, V32& square) const {
    const F32 d;
    master = hn::Mul(master, hn::Set(d, scalars.decay));
    mean = hn::Add(hn::Mul(mean, hn::Set(d, scalars.beta1)),
                   hn::Mul(hn::Set(d, scalars.one_minus_beta1), gradient));
    square = hn::Add(hn::Mul(square, hn::Set(d, scalars.beta2)),
                     hn::Mul(hn::Mul(hn::Set(d, scalars.one_minus_beta2), gradient), gradient));
    const V32 root = hn::Div(hn::Sqrt(square), hn::Set(d, scalars.bias2_root));
    const V32 denominator = hn::Add(root, hn::Set(d, scalars.eps));
    const V32 step = hn::Mul(hn::Set(d, scalars.minus_step_size), mean);
    master = hn::Add(master, hn::Div(step, denominator));
  }
};

uint64_t UpdateAdamW(const AdamWScalars& scalars, const UpdateRange& range) {
  return RunUpdate(AdamWRule{scalars}, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(UpdateAdamW);

uint64_t ApplyAdamW(const HyperParameters& hyper, uint64_t applied, const UpdateRange& range) {
  const double t = static_cast<double>(applied) + 1;
  AdamWScalars scalars;
  scalars.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  scalars.beta1 = static_cast<float>(hyper.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  scalars.beta2 = static_cast<float>(hyper.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  scalars.bias2_root = static_cast<float>(std::sqrt(1 - std::pow(hyper.beta2, t)));
  scalars.eps = static_cast<float>(hyper.eps);
  scalars.minus_step_size = static_cast<float>(-(hyper.lr / (1 - std::pow(hyper.beta1, t))));
  return HWY_DYNAMIC_DISPATCH(UpdateAdamW)(scalars, range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
