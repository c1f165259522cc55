#include "server/optim/registry.h"

#include "common/base/check.h"
#include "server/optim/adagrad.h"
#include "server/optim/adamw.h"
#include "server/optim/lion.h"
#include "server/optim/sgd.h"

namespace luwu::optim {
namespace {

constexpr OptimizerEntry kOptimizers[] = {
    {OptimizerKind::kAdamW, AdamMoments, ApplyAdam},
    {OptimizerKind::kAdam, AdamMoments, ApplyAdam},
    {OptimizerKind::kSgd, SgdMoments, ApplySgd},
    {OptimizerKind::kLion, LionMoments, ApplyLion},
    {OptimizerKind::kAdagrad, AdagradMoments, ApplyAdagrad},
};

void CheckRange(const StateLayout& layout, const OptimizerSpec& optimizer,
                const UpdateRange& range) {
  LUWU_CHECK(!range.gradients.empty(), "an update needs a gradient source");
  for (const GradientSource& source : range.gradients) {
    LUWU_CHECK(IsSupported(source.dtype), "gradient dtype");
  }
  LUWU_CHECK(range.held_dtype == DType::kFloat32 || range.held_dtype == DType::kBFloat16,
             "dtype of held sums");
  LUWU_CHECK(range.served != nullptr && IsSupported(range.served_dtype), "served copy");
  if (optimizer.master_format == MasterFormat::kSplit) {
    LUWU_CHECK(range.served_in != nullptr && range.served_dtype == DType::kBFloat16,
               "a split master lies in bf16 served copies");
  }
  for (uint32_t k = 0; k < layout.count; ++k) {
    LUWU_CHECK(range.in.data[k] != nullptr && range.out.data[k] != nullptr, "state array missing");
  }
}

}  // namespace

const OptimizerEntry* FindOptimizer(OptimizerKind kind) {
  for (const OptimizerEntry& entry : kOptimizers) {
    if (entry.kind == kind) return &entry;
  }
  return nullptr;
}

StateLayout LayoutOf(const OptimizerEntry& entry, const OptimizerSpec& optimizer) {
  LUWU_CHECK(optimizer.state_precision != StatePrecision::kUnspecified,
             "state precision of a job spec that was not validated");
  const Moments moments = entry.moments(optimizer);
  StateLayout layout;
  layout.count = 1 + moments.count;
  const bool split = optimizer.master_format == MasterFormat::kSplit;
  layout.formats[0] = split ? StateFormat::kLow16 : StateFormat::kFloat32;
  for (uint32_t k = 0; k < moments.count; ++k) {
    layout.formats[k + 1] = FormatOf(optimizer.state_precision, moments.roles[k]);
  }
  return layout;
}

UpdateOutcome ApplyUpdate(const OptimizerEntry& entry, const OptimizerSpec& optimizer,
                          const HyperParameters& hyper, uint64_t applied,
                          const UpdateRange& range) {
  if (range.count == 0) return {};
  CheckRange(LayoutOf(entry, optimizer), optimizer, range);
  return entry.apply(optimizer, hyper, applied, range);
}

}  // namespace luwu::optim
