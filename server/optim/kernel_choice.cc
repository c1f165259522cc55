#include "server/optim/kernel_choice.h"

#include <hwy/highway.h>

namespace luwu::optim {

void ChooseKernels(KernelChoice choice) {
  int64_t targets = 0;
  if (choice == KernelChoice::kPortable) {
    targets = HWY_STATIC_TARGET;
    for (const int64_t target : KernelTargets()) {
      if (target == HWY_SSE4 || target == HWY_NEON) targets = target;
    }
  }
  SetKernelTargets(targets);
}

std::vector<int64_t> KernelTargets() { return hwy::SupportedAndGeneratedTargets(); }

void SetKernelTargets(int64_t targets) { hwy::SetSupportedTargetsForTest(targets); }

}  // namespace luwu::optim
