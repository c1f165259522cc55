// Counts the operator-new calls of the calling thread between Start and Stop, in the program and in
// the shared libraries it loads. Linking the .cc replaces the global operators of the program.
#pragma once

#include <cstdint>

namespace luwu::testing {

void StartCountingAllocations();
uint64_t StopCountingAllocations();

}  // namespace luwu::testing
