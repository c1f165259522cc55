// Forces a kernel variant, for tests and benchmarks: run-time dispatch then picks among fewer
// targets. Process-wide; call it while no other thread is inside this module.
#pragma once

#include <cstdint>
#include <vector>

namespace luwu::optim {

enum class KernelChoice : uint8_t {
  kBest,      // what the CPU has, as without any choice
  kPortable,  // 128-bit vectors: SSE4 on x86
};
void ChooseKernels(KernelChoice choice);

// Variants that are built and that this CPU can run, as masks of Highway's HWY_TARGET bits, best
// first; and one of them forced (0: the best again).
std::vector<int64_t> KernelTargets();
void SetKernelTargets(int64_t targets);

}  // namespace luwu::optim
