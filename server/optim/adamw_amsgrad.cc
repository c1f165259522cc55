// Kernels of adamw.h with AMSGrad.
#include "server/optim/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/adamw_amsgrad.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/adam-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

UpdateOutcome UpdateAmsgrad(const AdamScalars& scalars, const OptimizerSpec& optimizer,
                            uint64_t applied, const UpdateRange& range) {
  return RunUpdate(AdamRule<true>{scalars}, optimizer, applied, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(UpdateAmsgrad);

UpdateOutcome ApplyAmsgrad(const OptimizerSpec& optimizer, const AdamScalars& scalars,
                           uint64_t applied, const UpdateRange& range) {
  return HWY_DYNAMIC_DISPATCH(UpdateAmsgrad)(scalars, optimizer, applied, range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
