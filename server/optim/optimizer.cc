#include "server/optim/optimizer.h"

#include "common/base/check.h"
#include "server/optim/adamw.h"
#include "server/optim/sgd.h"

namespace luwu::optim {

uint32_t StateArrayCount(const OptimizerSpec& optimizer) {
  switch (optimizer.kind) {
    case OptimizerKind::kAdamW:
      return 3;
    case OptimizerKind::kSgd:
      return optimizer.sgd_momentum ? 2 : 1;
    case OptimizerKind::kUnspecified:
      break;
  }
  LUWU_CHECK(false, "optimizer kind of a job spec that was not validated");
  return 0;
}

uint64_t ApplyUpdate(const OptimizerSpec& optimizer, const HyperParameters& hyper, uint64_t applied,
                     const UpdateRange& range) {
  if (range.count == 0) return kAllFinite;
  LUWU_CHECK(!range.gradients.empty(), "an update needs a gradient source");
  for (const GradientSource& source : range.gradients) {
    LUWU_CHECK(IsSupported(source.dtype), "gradient dtype");
  }
  LUWU_CHECK(range.served != nullptr && IsSupported(range.served_dtype), "served copy");
  const uint32_t states = StateArrayCount(optimizer);
  for (uint32_t k = 0; k < states; ++k) {
    LUWU_CHECK(range.in[k] != nullptr && range.out[k] != nullptr, "state array missing");
  }
  if (optimizer.kind == OptimizerKind::kAdamW) return ApplyAdamW(hyper, applied, range);
  return ApplySgd(optimizer.sgd_momentum, hyper, applied, range);
}

}  // namespace luwu::optim
