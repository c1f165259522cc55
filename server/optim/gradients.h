// What the optimizers share about gradient sums, beside the public functions in optimizer.h.
#pragma once

#include <cstdint>
#include <span>

#include "server/optim/optimizer.h"

namespace luwu::optim {

// First element whose scaled sum is not finite, in a range where the update pass has seen one. The
// search runs only then, so it may be slow. 0 when none is found any more: the sources lie in
// memory that a worker can still write.
uint64_t LocateNonFiniteSum(std::span<const GradientSource> gradients, float scale, uint64_t count);

}  // namespace luwu::optim
