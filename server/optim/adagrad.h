// Adagrad (Duchi, Hazan & Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
// Optimization", JMLR 12, 2011), in the operation order of torch.optim.Adagrad (without maximize):
//   g = g + wd * p                       when wd != 0
//   s = s + g * g                        s is initial_accumulator before the first update
//   p = p + (-lr / (1 + (t - 1) * lr_decay) * g) / (sqrt(s) + eps)
// Scalars are rounded once from double to fp32; every operation on elements rounds once. torch's
// own vector kernels fuse the addition into s (ATEN_CPU_CAPABILITY=default: not).
//
// Arrays: master, sum.
#pragma once

#include <cstdint>

#include "server/optim/registry.h"

namespace luwu::optim {

Moments AdagradMoments(const OptimizerSpec& optimizer);
UpdateOutcome ApplyAdagrad(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                           uint64_t applied, const UpdateRange& range);

}  // namespace luwu::optim
