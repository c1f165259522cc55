// The optimizers by the book, one element at a time: the oracle of the kernels and of the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "common/tensor/job_spec.h"

namespace luwu::optim::testing {

struct Setting {
  std::string name;
  OptimizerSpec optimizer;
  HyperParameters hyper;
};

// The update rules of adamw.h, sgd.h, lion.h and adagrad.h in the arithmetic of `Real`: float is
// the oracle for bits (one rounding per operation), double the one for accuracy. Factors derived
// from hyper-parameters are rounded to fp32 in both: they are the algorithm's input.
template <typename Real>
void ScalarAdam(const Setting& s, uint64_t applied, Real g, Real* state) {
  const HyperParameters& h = s.hyper;
  const double t = static_cast<double>(applied + 1);
  const Real step_size = static_cast<float>(h.lr / (1 - std::pow(h.beta1, t)));
  const Real bias2_root = static_cast<float>(std::sqrt(1 - std::pow(h.beta2, t)));
  if (s.optimizer.kind == OptimizerKind::kAdamW) {
    state[0] = state[0] * static_cast<float>(1 - h.lr * h.weight_decay);
  } else if (h.weight_decay != 0) {
    g = g + static_cast<float>(h.weight_decay) * state[0];
  }
  state[1] = state[1] * static_cast<float>(h.beta1) + static_cast<float>(1 - h.beta1) * g;
  const Real weighted = static_cast<float>(1 - h.beta2) * g;
  state[2] = state[2] * static_cast<float>(h.beta2) + weighted * g;
  if (s.optimizer.amsgrad) state[3] = std::max(state[3], state[2]);
  const Real root = std::sqrt(s.optimizer.amsgrad ? state[3] : state[2]) / bias2_root;
  state[0] = state[0] + (-step_size * state[1]) / (root + static_cast<float>(h.eps));
}

template <typename Real>
void ScalarSgd(const Setting& s, uint64_t applied, Real g, Real* state) {
  const HyperParameters& h = s.hyper;
  if (h.weight_decay != 0) g = g + static_cast<float>(h.weight_decay) * state[0];
  if (s.optimizer.sgd_momentum && h.momentum != 0) {
    const Real momentum = static_cast<float>(h.momentum);
    const Real kept = state[1] * momentum;
    state[1] = applied == 0 ? g : kept + static_cast<float>(1 - h.dampening) * g;
    g = h.nesterov ? g + momentum * state[1] : state[1];
  }
  state[0] = state[0] - static_cast<float>(h.lr) * g;
}

template <typename Real>
void ScalarUpdate(const Setting& s, uint64_t applied, Real g, Real* state) {
  const HyperParameters& h = s.hyper;
  if (s.optimizer.kind == OptimizerKind::kSgd) return ScalarSgd(s, applied, g, state);
  if (s.optimizer.kind == OptimizerKind::kLion) {
    const Real mixed = static_cast<float>(h.beta1) * state[1] + static_cast<float>(1 - h.beta1) * g;
    const Real sign = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
    const Real step = sign + static_cast<float>(h.weight_decay) * state[0];
    state[0] = state[0] - static_cast<float>(h.lr) * step;
    state[1] = static_cast<float>(h.beta2) * state[1] + static_cast<float>(1 - h.beta2) * g;
    return;
  }
  if (s.optimizer.kind == OptimizerKind::kAdagrad) {
    if (h.weight_decay != 0) g = g + static_cast<float>(h.weight_decay) * state[0];
    state[1] = state[1] + g * g;
    const Real step_size =
        static_cast<float>(h.lr / (1 + static_cast<double>(applied) * h.lr_decay));
    state[0] = state[0] + (-step_size * g) / (std::sqrt(state[1]) + static_cast<float>(h.eps));
    return;
  }
  ScalarAdam(s, applied, g, state);
}

}  // namespace luwu::optim::testing
