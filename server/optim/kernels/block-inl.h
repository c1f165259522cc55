// A block: four vectors, the unit of the kernels' loops. Loads a block of gradient of any dtype,
// adds sources in order, and notices non-finite values. Ranges that end inside a block go through
// a zero-padded copy, so that a value's bits never depend on its position or on the length.
// Included once per SIMD target by the kernels; no state.
#include <algorithm>
#include <cstring>
#include <span>

#include "server/optim/optimizer.h"

#include <hwy/highway.h>

#include "server/optim/kernels/half-inl.h"

#if defined(LUWU_OPTIM_KERNELS_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_BLOCK_INL_H_
#undef LUWU_OPTIM_KERNELS_BLOCK_INL_H_
#else
#define LUWU_OPTIM_KERNELS_BLOCK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr uint64_t kBlockElementsMax = 4 * hn::MaxLanes(F32());
HWY_INLINE uint64_t BlockElements() { return 4 * hn::Lanes(F32()); }

HWY_INLINE const float* AsFloats(const std::byte* data) {
  return static_cast<const float*>(static_cast<const void*>(data));
}
HWY_INLINE const uint16_t* AsHalves(const std::byte* data) {
  return static_cast<const uint16_t*>(static_cast<const void*>(data));
}
HWY_INLINE uint16_t* AsHalves(std::byte* data) {
  return static_cast<uint16_t*>(static_cast<void*>(data));
}
HWY_INLINE float* AsFloats(std::byte* data) {
  return static_cast<float*>(static_cast<void*>(data));
}

struct Block {
  V32 a, b, c, e;
};

// The block from element `at` of a source.
HWY_INLINE Block LoadBlock(const GradientSource& source, uint64_t at) {
  const F32 d;
  const uint64_t n = hn::Lanes(d);
  if (source.dtype == DType::kFloat32) {
    const float* from = AsFloats(source.data) + at;
    return {hn::LoadU(d, from), hn::LoadU(d, from + n), hn::LoadU(d, from + 2 * n),
            hn::LoadU(d, from + 3 * n)};
  }
  const uint16_t* from = AsHalves(source.data) + at;
  if (source.dtype == DType::kBFloat16) {
    return {LoadBFloat16(from), LoadBFloat16(from + n), LoadBFloat16(from + 2 * n),
            LoadBFloat16(from + 3 * n)};
  }
  return {LoadFloat16(from), LoadFloat16(from + n), LoadFloat16(from + 2 * n),
          LoadFloat16(from + 3 * n)};
}

HWY_INLINE Block Add(const Block& x, const Block& y) {
  return {hn::Add(x.a, y.a), hn::Add(x.b, y.b), hn::Add(x.c, y.c), hn::Add(x.e, y.e)};
}

HWY_INLINE Block Scale(const Block& x, V32 factor) {
  return {hn::Mul(x.a, factor), hn::Mul(x.b, factor), hn::Mul(x.c, factor), hn::Mul(x.e, factor)};
}

// ((g0 + g1) + g2) + ...; a single source is taken as it is, so that -0 stays -0.
HWY_INLINE Block SumBlock(std::span<const GradientSource> sources, uint64_t at) {
  Block sum = LoadBlock(sources[0], at);
  for (size_t k = 1; k < sources.size(); ++k) sum = Add(sum, LoadBlock(sources[k], at));
  return sum;
}

// x - x is +0 for finite x and NaN otherwise: the bits of `seen` stay zero while all is finite.
HWY_INLINE V32 NoteNonFinite(const Block& x, V32 seen) {
  seen = hn::Or(seen, hn::Sub(x.a, x.a));
  seen = hn::Or(seen, hn::Sub(x.b, x.b));
  seen = hn::Or(seen, hn::Sub(x.c, x.c));
  return hn::Or(seen, hn::Sub(x.e, x.e));
}
HWY_INLINE bool AnyNoted(V32 seen) {
  const U32 d;
  return !hn::AllTrue(d, hn::Eq(hn::BitCast(d, seen), hn::Zero(d)));
}

// The last `count` < block elements of a source, zero-padded to a block in `scratch`.
HWY_INLINE GradientSource PaddedTail(const GradientSource& source, uint64_t at, uint64_t count,
                                     std::byte* scratch) {
  const uint64_t bytes = source.dtype == DType::kFloat32 ? 4 : 2;
  std::memset(scratch, 0, kBlockElementsMax * bytes);
  std::memcpy(scratch, source.data + at * bytes, count * bytes);
  return {scratch, source.dtype};
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
