// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm
// 2), in the order of the paper:
//   c = beta1 * m + (1 - beta1) * g
//   p = p - lr * (sign(c) + wd * p)      sign(0) = 0
//   m = beta2 * m + (1 - beta2) * g
// Scalars are rounded once from double to fp32; every operation on elements rounds once.
//
// Arrays: master, exp_avg.
#pragma once

#include <cstdint>

#include "server/optim/registry.h"

namespace luwu::optim {

Moments LionMoments(const OptimizerSpec& optimizer);
UpdateOutcome ApplyLion(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                        uint64_t applied, const UpdateRange& range);

}  // namespace luwu::optim
