#include "server/optim/adamw.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/adamw.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/adam-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

UpdateOutcome UpdateAdam(const AdamScalars& scalars, const OptimizerSpec& optimizer,
                         uint64_t applied, const UpdateRange& range) {
  return RunUpdate(AdamRule<false>{scalars}, optimizer, applied, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(UpdateAdam);

AdamScalars MakeAdamScalars(OptimizerKind kind, const HyperParameters& hyper, uint64_t applied) {
  const double t = static_cast<double>(applied) + 1;
  AdamScalars scalars;
  if (kind == OptimizerKind::kAdamW) {
    scalars.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  } else {
    scalars.l2 = static_cast<float>(hyper.weight_decay);
  }
  scalars.beta1 = static_cast<float>(hyper.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  scalars.beta2 = static_cast<float>(hyper.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  scalars.bias2_root = static_cast<float>(std::sqrt(1 - std::pow(hyper.beta2, t)));
  scalars.inverse_bias2_root = 1 / scalars.bias2_root;
  scalars.eps = static_cast<float>(hyper.eps);
  scalars.minus_step_size = static_cast<float>(-(hyper.lr / (1 - std::pow(hyper.beta1, t))));
  scalars.has_l2 = scalars.l2 != 0;
  return scalars;
}

Moments AdamMoments(const OptimizerSpec& optimizer) {
  return {optimizer.amsgrad ? 3u : 2u,
          {StateRole::kSigned, StateRole::kUnsigned, StateRole::kUnsigned}};
}

UpdateOutcome ApplyAdam(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                        uint64_t applied, const UpdateRange& range) {
  const AdamScalars scalars = MakeAdamScalars(optimizer.kind, hyper, applied);
  if (optimizer.amsgrad) return ApplyAmsgrad(optimizer, scalars, applied, range);
  return HWY_DYNAMIC_DISPATCH(UpdateAdam)(scalars, optimizer, applied, range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
