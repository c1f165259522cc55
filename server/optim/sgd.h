// SGD in the operation order of torch.optim.SGD (without maximize):
//   g = g + wd * p                       when wd != 0
//   b = g                                in the first update (torch keeps no buffer before it)
//   b = b * momentum + (1 - dampening) * g   in the others
//   g = g + momentum * b   with nesterov, else g = b
//   p = p - lr * g
// In a step whose momentum is 0 the buffer is left as it is, as in torch, and g is used directly.
// Scalars are rounded once from double to fp32; every operation on elements rounds once. torch's
// own vector kernels fuse each of these additions (ATEN_CPU_CAPABILITY=default: not).
//
// Arrays: master and, with sgd_momentum, the momentum buffer.
#pragma once

#include <cstdint>

#include "server/optim/registry.h"

namespace luwu::optim {

Moments SgdMoments(const OptimizerSpec& optimizer);
UpdateOutcome ApplySgd(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                       uint64_t applied, const UpdateRange& range);

}  // namespace luwu::optim
