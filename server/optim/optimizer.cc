#include "server/optim/optimizer.h"

#include "common/base/check.h"
#include "server/optim/registry.h"

namespace luwu::optim {
namespace {

const OptimizerEntry& EntryOf(const OptimizerSpec& optimizer) {
  const OptimizerEntry* entry = FindOptimizer(optimizer.kind);
  LUWU_CHECK(entry != nullptr, "optimizer kind of a job spec that was not validated");
  return *entry;
}

}  // namespace

StateLayout LayoutOf(const OptimizerSpec& optimizer) {
  return LayoutOf(EntryOf(optimizer), optimizer);
}

uint64_t ArrayBytes(StateFormat format, uint64_t elements, uint64_t segments) {
  switch (format) {
    case StateFormat::kFloat32:
      return AlignUp(elements * 4, 64);
    case StateFormat::kBFloat16:
    case StateFormat::kLow16:
      return AlignUp(elements * 2, 64);
    case StateFormat::kSigned8:
    case StateFormat::kUnsigned8:
      break;
  }
  const uint64_t blocks = AlignUp(elements, kQuantBlock) / kQuantBlock + segments;
  return AlignUp(elements, 64) + AlignUp(blocks * sizeof(float), 64);
}

UpdateOutcome ApplyUpdate(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                          uint64_t applied, const UpdateRange& range) {
  return ApplyUpdate(EntryOf(optimizer), optimizer, hyper, applied, range);
}

}  // namespace luwu::optim
