// Small jobs and requests that are right, for tests to use or to spoil.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "luwu/v1/types.pb.h"

namespace luwu {

// Two layers: one of two tensors in two shards, and a frozen one.
inline JobSpec SmallSpec(const std::string& name = "job", uint32_t world_size = 1) {
  JobSpec spec;
  spec.name = name;
  spec.world_size = world_size;
  spec.layers = {
      {.name = "body",
       .elements = 100,
       .tensors = {{.name = "w", .shape = {8, 8}, .offset = 0, .group = 0, .trainable = true},
                   {.name = "b", .shape = {36}, .offset = 64, .group = 1, .trainable = true}}},
      {.name = "table",
       .elements = 10,
       .tensors = {{.name = "t", .shape = {10}, .offset = 0, .group = 0, .trainable = false}}},
  };
  spec.groups = 2;
  spec.optimizer = {.kind = OptimizerKind::kAdamW, .sgd_momentum = false};
  spec.served_dtype = DType::kFloat32;
  spec.gradient_dtype = DType::kFloat32;
  spec.shard_elements = 64;
  spec.slots_per_worker = 4;
  spec.overflow_bytes = 1 << 20;
  return spec;
}

// Nothing to push, so its steps commit as soon as every rank has begun them.
inline JobSpec FrozenSpec(const std::string& name = "frozen", uint32_t world_size = 1) {
  JobSpec spec = SmallSpec(name, world_size);
  for (LayerSpec& layer : spec.layers) {
    for (TensorSpec& tensor : layer.tensors) tensor.trainable = false;
  }
  return spec;
}

inline v1::HyperParameters AdamWGroup() {
  v1::HyperParameters group;
  group.set_lr(1e-3);
  group.set_beta1(0.9);
  group.set_beta2(0.999);
  group.set_eps(1e-8);
  return group;
}

// Expects an error of `code` whose text contains `text`.
#define EXPECT_ERROR(expression, expected_code, text)                                   \
  do {                                                                                  \
    const Status luwu_got = (expression);                                               \
    EXPECT_EQ(CodeOf(luwu_got), expected_code) << ToString(luwu_got);                   \
    EXPECT_NE(MessageOf(luwu_got).find(text), std::string::npos) << ToString(luwu_got); \
  } while (false)

}  // namespace luwu
