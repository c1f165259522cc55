// AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101) and Adam
// with L2 regularisation (Kingma & Ba, arXiv 1412.6980), both also with AMSGrad (Reddi, Kale &
// Kumar, "On the Convergence of Adam and Beyond", arXiv 1904.09237), in the operation order of
// torch.optim.AdamW and torch.optim.Adam (without maximize):
//   AdamW: p = p * (1 - lr * wd)          Adam: g = g + wd * p   when wd != 0
//   m = m * beta1 + (1 - beta1) * g
//   v = v * beta2 + ((1 - beta2) * g) * g
//   x = v                                 AMSGrad: x = max(x, v), kept
//   p = p + (-lr / (1 - beta1^t) * m) / (sqrt(x) / sqrt(1 - beta2^t) + eps)
// Scalars are computed in double and rounded once to fp32; every operation on elements rounds once.
// torch's own vector kernels (AVX2, AVX-512) fuse the two additions into m and v, which changes the
// last bit of some elements; with ATEN_CPU_CAPABILITY=default they do not, and results are equal.
//
// Arrays: master, exp_avg, exp_avg_sq, and with AMSGrad max_exp_avg_sq. adamw.cc has the kernels
// without AMSGrad, adamw_amsgrad.cc those with it.
#pragma once

#include <cstdint>

#include "server/optim/registry.h"

namespace luwu::optim {

struct AdamScalars {
  float decay = 1;  // 1 - lr * weight_decay; Adam: 1
  float l2 = 0;     // weight_decay; AdamW: 0
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float bias2_root = 1;          // sqrt(1 - beta2^t)
  float inverse_bias2_root = 1;  // rounded
  float eps = 0;
  float minus_step_size = 0;  // -lr / (1 - beta1^t)
  bool has_l2 = false;        // l2 is not 0: cheaper to ask in the loop than the number itself
};
AdamScalars MakeAdamScalars(OptimizerKind kind, const HyperParameters& hyper, uint64_t applied);

Moments AdamMoments(const OptimizerSpec& optimizer);
UpdateOutcome ApplyAdam(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                        uint64_t applied, const UpdateRange& range);
UpdateOutcome ApplyAmsgrad(const OptimizerSpec& optimizer, const AdamScalars& scalars,
                           uint64_t applied, const UpdateRange& range);

}  // namespace luwu::optim
