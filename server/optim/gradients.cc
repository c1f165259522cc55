// AccumulateGradient, FindNonFinite and the search for a non-finite sum.
#include "server/optim/gradients.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "server/optim/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/gradients.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

void AccumulateBlock(const GradientSource& source, uint64_t at, bool first, float* sum) {
  const F32 d;
  const uint64_t n = hn::Lanes(d);
  Block value = LoadBlock(source, at);
  if (!first) {
    value = Add({hn::LoadU(d, sum), hn::LoadU(d, sum + n), hn::LoadU(d, sum + 2 * n),
                 hn::LoadU(d, sum + 3 * n)},
                value);
  }
  StoreBlock(value, sum);
}

void Accumulate(const GradientSource& source, uint64_t count, bool first, float* sum) {
  const uint64_t block = BlockElements();
  uint64_t i = 0;
  for (; i + block <= count; i += block) AccumulateBlock(source, i, first, sum + i);
  if (i == count) return;
  alignas(64) std::byte scratch[kBlockElementsMax * sizeof(float)];
  alignas(64) float partial[kBlockElementsMax] = {};
  const GradientSource padded = PaddedTail(source, i, count - i, scratch);
  if (!first) std::memcpy(partial, sum + i, (count - i) * sizeof(float));
  AccumulateBlock(padded, 0, first, partial);
  std::memcpy(sum + i, partial, (count - i) * sizeof(float));
}

bool BlockHasNonFinite(const GradientSource& source, uint64_t at) {
  return AnyNoted(NoteNonFinite(LoadBlock(source, at), hn::Zero(F32())));
}

// First element of the first block that holds a non-finite value, or `count`.
uint64_t FindNonFiniteBlock(const GradientSource& source, uint64_t count) {
  const uint64_t block = BlockElements();
  uint64_t i = 0;
  for (; i + block <= count; i += block) {
    if (BlockHasNonFinite(source, i)) return i;
  }
  if (i == count) return count;
  alignas(64) std::byte scratch[kBlockElementsMax * sizeof(float)];
  return BlockHasNonFinite(PaddedTail(source, i, count - i, scratch), 0) ? i : count;
}

std::string_view TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(Accumulate);
HWY_EXPORT(FindNonFiniteBlock);
HWY_EXPORT(TargetName);

namespace {

GradientSource From(const GradientSource& source, uint64_t at) {
  return {source.data + at * DTypeBytes(source.dtype), source.dtype};
}

}  // namespace

void AccumulateGradient(const GradientSource& gradient, uint64_t count, bool first, float* sum) {
  LUWU_CHECK(IsSupported(gradient.dtype), "gradient dtype");
  HWY_DYNAMIC_DISPATCH(Accumulate)(gradient, count, first, sum);
}

uint64_t FindNonFinite(const GradientSource& gradient, uint64_t count) {
  LUWU_CHECK(IsSupported(gradient.dtype), "gradient dtype");
  const uint64_t begin = HWY_DYNAMIC_DISPATCH(FindNonFiniteBlock)(gradient, count);
  for (uint64_t i = begin; i < count; ++i) {
    float value = 0;
    AccumulateGradient(From(gradient, i), 1, true, &value);
    if (!std::isfinite(value)) return i;
  }
  return kAllFinite;
}

uint64_t LocateNonFiniteSum(std::span<const GradientSource> gradients, float scale,
                            uint64_t count) {
  constexpr uint64_t kChunk = 256;
  float sum[kChunk];
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t n = std::min(kChunk, count - begin);
    for (size_t k = 0; k < gradients.size(); ++k) {
      AccumulateGradient(From(gradients[k], begin), n, k == 0, sum);
    }
    for (uint64_t i = 0; i < n; ++i) {
      if (!std::isfinite(sum[i] * scale)) return begin + i;
    }
  }
  return 0;
}

std::string_view KernelName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace luwu::optim
#endif  // HWY_ONCE
