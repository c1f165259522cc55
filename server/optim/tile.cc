// The parts of the fused pass that are seldom needed, out of line; HoldSum.
#include <cmath>

#include "common/base/check.h"
#include "server/optim/gradients.h"
#include "server/optim/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optim/tile.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

void HoldPart(const SumArgs& args, uint64_t at, uint64_t count, float* sum) {
  if (args.held_dtype == DType::kFloat32) {
    std::memcpy(args.held + at * sizeof(float), sum, count * sizeof(float));
    return;
  }
  alignas(64) uint16_t rounded[kQuantBlock];
  const F32 d;
  for (uint64_t i = 0; i < count; i += hn::Lanes(d)) {
    StoreBFloat16(hn::Load(d, sum + i), rounded + i);
    hn::Store(LoadBFloat16(rounded + i), d, sum + i);
  }
  std::memcpy(args.held + at * sizeof(uint16_t), rounded, count * sizeof(uint16_t));
}

void HoldBlock(const SumArgs& args, uint64_t at, Block* sum) {
  alignas(64) float values[kBlockElementsMax];
  StoreBlock(*sum, values);
  HoldPart(args, at, BlockElements(), values);
  *sum = LoadBlock({std::as_bytes(std::span(values)).data(), DType::kFloat32}, 0);
}

// A block that reaches beyond the end of the sources.
HWY_INLINE Block SumPartialBlock(std::span<const GradientSource> sources, uint64_t at,
                                 uint64_t count) {
  alignas(64) std::byte scratch[kBlockElementsMax * sizeof(float)];
  Block sum = LoadBlock(PaddedTail(sources[0], at, count, scratch), 0);
  for (size_t k = 1; k < sources.size(); ++k) {
    sum = Add(sum, LoadBlock(PaddedTail(sources[k], at, count, scratch), 0));
  }
  return sum;
}

void SumPadded(const SumArgs& args, uint64_t at, uint64_t count, float* sum) {
  const uint64_t block = BlockElements();
  const uint64_t whole = count / block * block;
  std::memset(sum, 0, AlignUp(count, kStep) * sizeof(float));
  for (uint64_t i = 0; i < whole; i += block) {
    StoreBlock(SumBlock(args.gradients, at + i), sum + i);
  }
  if (whole < count) {
    StoreBlock(SumPartialBlock(args.gradients, at + whole, count - whole), sum + whole);
  }
  if (args.held != nullptr) HoldPart(args, at, count, sum);
}

void StreamTile(const std::byte* source, uint64_t bytes, std::byte* target) {
  const hn::ScalableTag<uint8_t> d;
  for (uint64_t i = 0; i < bytes; i += hn::Lanes(d)) {
    const auto* from = static_cast<const uint8_t*>(static_cast<const void*>(source + i));
    auto* to = static_cast<uint8_t*>(static_cast<void*>(target + i));
    hn::Stream(hn::Load(d, from), d, to);
  }
}

UpdateOutcome Outcome(const NormLanes& norm, const SumArgs& args, uint64_t count) {
  NormLanes sums = norm;
  for (uint64_t step = 4; step > 0; step /= 2) {
    for (uint64_t k = 0; k < step; ++k) sums.lanes[k] += sums.lanes[k + step];
  }
  UpdateOutcome outcome;
  outcome.squared_norm = sums.lanes[0];
  // The squares of finite fp32 numbers do not overflow double.
  if (!std::isfinite(outcome.squared_norm)) {
    const GradientSource held = {args.held, args.held_dtype};
    const auto gradients = args.held == nullptr ? args.gradients : std::span(&held, 1);
    outcome.non_finite = LocateNonFiniteSum(gradients, args.scale, count);
  }
  return outcome;
}

UpdateOutcome Hold(const HoldRange& range) {
  alignas(64) float sum[kQuantBlock];
  const SumArgs args =
      MakeSumArgs(range.gradients, range.gradient_scale, range.held, range.held_dtype);
  const bool prefetch = range.gradients.size() >= kPrefetchSourcesMin;
  NormLanes norm;
  for (uint64_t at = 0; at < range.count;) {
    const uint64_t first = range.first + at;
    const uint64_t count = std::min(range.count - at, TileEnd(first) - first);
    NormVectors squares;
    Load(norm, &squares);
    if (count % kStep == 0) {
      for (uint64_t i = 0; i < count; i += BlockElements()) {
        if (prefetch && i % kStep == 0) PrefetchSources(args.gradients, at + i);
        TakeSum<true>(args, at + i, i, &squares);
      }
    } else {
      SumPadded(args, at, count, sum);
      const GradientSource padded = {std::as_bytes(std::span(sum)).data(), DType::kFloat32};
      const SumArgs again =
          MakeSumArgs(std::span(&padded, 1), args.scale, nullptr, DType::kFloat32);
      for (uint64_t i = 0; i < count; i += BlockElements()) TakeSum<true>(again, i, i, &squares);
    }
    Store(squares, &norm);
    at += count;
  }
  hwy::FlushStream();  // before another thread is told of the sum
  return Outcome(norm, args, range.count);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::optim {

HWY_EXPORT(Hold);

UpdateOutcome HoldSum(const HoldRange& range) {
  LUWU_CHECK(range.held != nullptr && !range.gradients.empty(), "held sum");
  LUWU_CHECK(range.held_dtype == DType::kFloat32 || range.held_dtype == DType::kBFloat16,
             "dtype of held sums");
  for (const GradientSource& source : range.gradients) {
    LUWU_CHECK(IsSupported(source.dtype), "gradient dtype");
  }
  return HWY_DYNAMIC_DISPATCH(Hold)(range);
}

}  // namespace luwu::optim
#endif  // HWY_ONCE
