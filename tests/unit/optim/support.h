// What the optimizer tests share: random data, buffers of every gradient dtype, settings.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "server/optim/optimizer.h"
#include "tests/unit/optim/scalar_rules.h"
#include "tests/unit/optim/targets.h"

namespace luwu::optim::testing {

inline uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

inline bool SameBits(const std::vector<float>& x, const std::vector<float>& y) {
  return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                    [](float a, float b) { return Bits(a) == Bits(b); });
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Normal, times a power of ten drawn from 10^-4..1: gradients differ in scale.
  float Gradient() {
    return static_cast<float>(normal_(engine_) * std::pow(10.0, -4 * uniform_(engine_)));
  }
  float Weight() { return static_cast<float>(normal_(engine_)); }
  uint64_t Below(uint64_t limit) { return engine_() % limit; }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_{0, 1};
  std::uniform_real_distribution<double> uniform_{0, 1};
};

// `count` elements in `dtype`, starting `skew` elements after a 16-byte boundary and ending where
// the allocation ends, so that a read beyond the range is seen by the address sanitizer.
class GradientBuffer {
 public:
  GradientBuffer(DType dtype, uint64_t count, uint64_t skew = 0)
      : dtype_(dtype), count_(count), skew_(skew), storage_((count + skew) * DTypeBytes(dtype)) {}

  void Set(uint64_t i, float value) {
    switch (dtype_) {
      case DType::kBFloat16:
        return Store(i, FloatToBFloat16(value));
      case DType::kFloat16:
        return Store(i, FloatToFloat16(value));
      default:
        return Store(i, value);
    }
  }
  void SetBits16(uint64_t i, uint16_t bits) { Store(i, bits); }
  void Fill(Random& random) {
    for (uint64_t i = 0; i < count_; ++i) Set(i, random.Gradient());
  }
  float Get(uint64_t i) const {
    if (dtype_ == DType::kFloat32) return Load<float>(i);
    const uint16_t bits = Load<uint16_t>(i);
    return dtype_ == DType::kBFloat16 ? BFloat16ToFloat(bits) : Float16ToFloat(bits);
  }
  GradientSource source() const { return {data(), dtype_}; }

 private:
  const std::byte* data() const { return storage_.data() + skew_ * DTypeBytes(dtype_); }
  std::byte* data() { return storage_.data() + skew_ * DTypeBytes(dtype_); }
  template <class T>
  void Store(uint64_t i, T value) {
    std::memcpy(data() + i * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T Load(uint64_t i) const {
    T value;
    std::memcpy(&value, data() + i * sizeof(T), sizeof(T));
    return value;
  }

  DType dtype_;
  uint64_t count_;
  uint64_t skew_;
  std::vector<std::byte> storage_;
};

// Named optimizer settings that between them reach every branch.
inline HyperParameters AdagradDecay(HyperParameters values) {
  values.lr_decay = 0.01;
  values.eps = 1e-10;
  return values;
}

inline std::vector<Setting> AllSettings() {
  const OptimizerSpec adamw{OptimizerKind::kAdamW, false};
  const OptimizerSpec sgd{OptimizerKind::kSgd, false};
  const OptimizerSpec sgd_momentum{OptimizerKind::kSgd, true};
  HyperParameters adam;
  adam.lr = 1e-3;
  adam.weight_decay = 0.01;
  adam.beta1 = 0.9;
  adam.beta2 = 0.999;
  adam.eps = 1e-8;
  HyperParameters adam_no_decay = adam;
  adam_no_decay.weight_decay = 0;
  adam_no_decay.beta2 = 0.95;
  HyperParameters plain;
  plain.lr = 1e-2;
  HyperParameters decay = plain;
  decay.weight_decay = 0.02;
  HyperParameters momentum = decay;
  momentum.momentum = 0.9;
  HyperParameters dampened = momentum;
  dampened.dampening = 0.25;
  HyperParameters nesterov = momentum;
  nesterov.nesterov = true;
  return {{"adamw", adamw, adam},
          {"adamw_no_decay", adamw, adam_no_decay},
          {"sgd", sgd, plain},
          {"sgd_decay", sgd, decay},
          {"sgd_momentum", sgd_momentum, momentum},
          {"sgd_dampened", sgd_momentum, dampened},
          {"sgd_nesterov", sgd_momentum, nesterov},
          {"sgd_momentum_zero_this_step", sgd_momentum, decay},
          {"adam_l2", {.kind = OptimizerKind::kAdam}, adam},
          {"adamw_amsgrad", {.kind = OptimizerKind::kAdamW, .amsgrad = true}, adam},
          {"adam_l2_amsgrad", {.kind = OptimizerKind::kAdam, .amsgrad = true}, adam},
          {"lion", {.kind = OptimizerKind::kLion}, adam},
          {"adagrad", {.kind = OptimizerKind::kAdagrad}, decay},
          {"adagrad_lr_decay", {.kind = OptimizerKind::kAdagrad}, AdagradDecay(adam)}};
}

struct State {
  std::vector<float> arrays[kStateArraysMax];

  State() = default;
  State(uint64_t count, Random& random) {
    for (auto& array : arrays) array.resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      arrays[0][i] = random.Weight();
      arrays[1][i] = random.Gradient();
      for (uint32_t k = 2; k < kStateArraysMax; ++k) arrays[k][i] = std::abs(random.Gradient());
    }
  }
  // The second array of Adagrad holds squares.
  void MakeSecondPositive() {
    for (float& value : arrays[1]) value = std::abs(value);
  }
  // Of the arrays from element `skew` on.
  StateArrays pointers(uint64_t skew = 0) {
    StateArrays pointers;
    for (uint32_t k = 0; k < kStateArraysMax; ++k) {
      pointers.data[k] = std::as_writable_bytes(std::span(arrays[k])).data() + 4 * skew;
    }
    return pointers;
  }
};

inline float ScalarSum(const std::vector<GradientBuffer>& gradients, uint64_t i, float scale) {
  float sum = gradients[0].Get(i);
  for (size_t k = 1; k < gradients.size(); ++k) sum = sum + gradients[k].Get(i);
  return sum * scale;
}

inline uint32_t ServedBits(DType dtype, float value) {
  if (dtype == DType::kFloat32) return Bits(value);
  return dtype == DType::kBFloat16 ? FloatToBFloat16(value) : FloatToFloat16(value);
}

inline std::vector<GradientSource> SourcesOf(const std::vector<GradientBuffer>& gradients) {
  std::vector<GradientSource> sources;
  sources.reserve(gradients.size());
  for (const GradientBuffer& gradient : gradients) sources.push_back(gradient.source());
  return sources;
}

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

}  // namespace luwu::optim::testing
