// The fused pass that all optimizers share: sum the gradients, note non-finite sums, hand each
// vector of gradient and state to the optimizer's rule, write state and served copy. One read of
// every source and one write of every target.
//
// A rule is a struct with `static constexpr uint32_t kStates` (1..3, master first) and
// `void operator()(V32 gradient, V32& master, V32& second, V32& third) const`; it may use only
// operations that round once (Add, Sub, Mul, Div, Sqrt), never MulAdd, or the bits would depend on
// the target. Included once per SIMD target by each optimizer; no state.
#include <cstring>

#include "server/optim/gradients.h"
#include "server/optim/optimizer.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"

#if defined(LUWU_OPTIM_KERNELS_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_UPDATE_INL_H_
#undef LUWU_OPTIM_KERNELS_UPDATE_INL_H_
#else
#define LUWU_OPTIM_KERNELS_UPDATE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Streaming stores keep the lines of `out` from being read before they are overwritten.
template <bool kStream>
HWY_INLINE void StoreState(V32 value, float* target) {
  if constexpr (kStream) {
    hn::Stream(value, F32(), target);
  } else {
    hn::StoreU(value, F32(), target);
  }
}

HWY_INLINE void StoreServed(V32 value, const UpdateRange& range, uint64_t at) {
  if (range.served_dtype == DType::kBFloat16) {
    StoreBFloat16(value, AsHalves(range.served) + at);
  } else if (range.served_dtype == DType::kFloat32) {
    hn::StoreU(value, F32(), AsFloats(range.served) + at);
  } else {
    StoreFloat16(value, AsHalves(range.served) + at);
  }
}

template <bool kStream, class Rule>
HWY_INLINE void UpdateVector(const Rule& rule, const UpdateRange& range, V32 gradient,
                             uint64_t at) {
  const F32 d;
  V32 master = hn::LoadU(d, range.in[0] + at);
  V32 second = hn::Zero(d);
  V32 third = hn::Zero(d);
  if constexpr (Rule::kStates > 1) second = hn::LoadU(d, range.in[1] + at);
  if constexpr (Rule::kStates > 2) third = hn::LoadU(d, range.in[2] + at);
  rule(gradient, master, second, third);
  StoreState<kStream>(master, range.out[0] + at);
  if constexpr (Rule::kStates > 1) StoreState<kStream>(second, range.out[1] + at);
  if constexpr (Rule::kStates > 2) StoreState<kStream>(third, range.out[2] + at);
  StoreServed(master, range, at);
}

template <bool kStream, class Rule>
HWY_INLINE void UpdateBlock(const Rule& rule, const UpdateRange& range, uint64_t at, V32& seen) {
  const uint64_t n = hn::Lanes(F32());
  const V32 scale = hn::Set(F32(), range.gradient_scale);  // times 1 changes no bit
  const Block sum = Scale(SumBlock(range.gradients, at), scale);
  seen = NoteNonFinite(sum, seen);
  UpdateVector<kStream>(rule, range, sum.a, at);
  UpdateVector<kStream>(rule, range, sum.b, at + n);
  UpdateVector<kStream>(rule, range, sum.c, at + 2 * n);
  UpdateVector<kStream>(rule, range, sum.e, at + 3 * n);
}

// The elements from `at` to the end, fewer than a block, through padded copies.
template <class Rule>
HWY_INLINE void UpdateTail(const Rule& rule, const UpdateRange& range, uint64_t at, V32& seen) {
  alignas(64) float sum[kBlockElementsMax] = {};
  alignas(64) float state[kStateArraysMax][kBlockElementsMax] = {};
  alignas(64) std::byte served[kBlockElementsMax * sizeof(float)];
  const uint64_t count = range.count - at;
  for (size_t k = 0; k < range.gradients.size(); ++k) {
    const GradientSource& source = range.gradients[k];
    const uint64_t skipped = at * DTypeBytes(source.dtype);
    AccumulateGradient({source.data + skipped, source.dtype}, count, k == 0, sum);
  }
  const GradientSource summed = {std::as_bytes(std::span(sum)).data(), DType::kFloat32};
  UpdateRange padded = range;
  padded.gradients = std::span(&summed, 1);
  padded.served = served;
  for (uint32_t k = 0; k < Rule::kStates; ++k) {
    std::memcpy(state[k], range.in[k] + at, count * sizeof(float));
    padded.in[k] = padded.out[k] = state[k];
  }
  UpdateBlock<false>(rule, padded, 0, seen);
  for (uint32_t k = 0; k < Rule::kStates; ++k) {
    std::memcpy(range.out[k] + at, state[k], count * sizeof(float));
  }
  const uint64_t served_bytes = DTypeBytes(range.served_dtype);
  std::memcpy(range.served + at * served_bytes, served, count * served_bytes);
}

// Rule and range by value: no store through `out` can alias them, so they stay in registers.
template <bool kStream, class Rule>
HWY_NOINLINE uint64_t UpdateAll(const Rule rule, const UpdateRange range) {
  const uint64_t block = BlockElements();
  V32 seen = hn::Zero(F32());
  uint64_t i = 0;
  for (; i + block <= range.count; i += block) UpdateBlock<kStream>(rule, range, i, seen);
  if constexpr (kStream) hwy::FlushStream();  // before another thread is told of the result
  if (i < range.count) UpdateTail(rule, range, i, seen);
  if (!AnyNoted(seen)) return kAllFinite;
  return LocateNonFiniteSum(range.gradients, range.gradient_scale, range.count);
}

HWY_INLINE bool IsVectorAligned(const float* data) {
  uintptr_t address = 0;
  std::memcpy(&address, &data, sizeof(address));
  return address % (hn::Lanes(F32()) * sizeof(float)) == 0;
}

// Whether `out` can be written past the caches: it is not what was read, and vectors are aligned.
template <class Rule>
HWY_INLINE bool CanStream(const UpdateRange& range) {
  for (uint32_t k = 0; k < Rule::kStates; ++k) {
    if (range.out[k] == range.in[k] || !IsVectorAligned(range.out[k])) return false;
  }
  return true;
}

template <class Rule>
HWY_INLINE uint64_t RunUpdate(const Rule& rule, const UpdateRange& range) {
  return CanStream<Rule>(range) ? UpdateAll<true>(rule, range) : UpdateAll<false>(rule, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
