// AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101), in the
// operation order of torch.optim.AdamW (without amsgrad and maximize):
//   p = p * (1 - lr * wd)
//   m = m * beta1 + (1 - beta1) * g
//   v = v * beta2 + ((1 - beta2) * g) * g
//   p = p + (-lr / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// Scalars are computed in double and rounded once to fp32; every operation on elements rounds once.
// torch's own vector kernels (AVX2, AVX-512) fuse the two additions into m and v, which changes the
// last bit of some elements; with ATEN_CPU_CAPABILITY=default they do not, and results are equal.
#pragma once

#include <cstdint>

#include "server/optim/optimizer.h"

namespace luwu::optim {

// ApplyUpdate of optimizer.h for AdamW; state arrays: master, exp_avg, exp_avg_sq.
uint64_t ApplyAdamW(const HyperParameters& hyper, uint64_t applied, const UpdateRange& range);

}  // namespace luwu::optim
