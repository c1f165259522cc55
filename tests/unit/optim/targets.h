// A walk over the kernel variants.
#pragma once

#include <functional>
#include <string>

#include <hwy/highway.h>

#include "server/optim/kernel_choice.h"

namespace luwu::optim::testing {

// Runs `body` once per SIMD target that was compiled and that this CPU has.
inline void ForEachTarget(const std::function<void(const std::string&)>& body) {
  for (const int64_t target : KernelTargets()) {
    SetKernelTargets(target);
    body(hwy::TargetName(target));
    SetKernelTargets(0);
  }
}

}  // namespace luwu::optim::testing
