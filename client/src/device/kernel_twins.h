// The GPU kernels on a CPU, with the same bits: what tests compare the kernels with, and what the
// tests' GPU without silicon runs. Any thread; no failure. The dtypes are supported ones (CHECKed).
#pragma once

#include <cstdint>

#include "client/src/device/kernel_math.h"
#include "common/base/bytes.h"
#include "common/tensor/dtype.h"

namespace luwu::client::kernels {

struct TwinCall {
  DType source_dtype = DType::kUnspecified;
  const void* source = nullptr;
  DType target_dtype = DType::kUnspecified;
  void* target = nullptr;
  uint64_t count = 0;
};

// Adds to `partials`, of which there are kBlocks.
void PackTwin(const TwinCall& call, float scale, Partial* partials);
void UnpackTwin(const TwinCall& call);

// All partials as one, in their order.
Partial Total(const Partial* partials);

}  // namespace luwu::client::kernels
