// The random bits of stochastic rounding. Included once per SIMD target by the kernels; no state.
//
// One word of 32 bits for each pair of elements of an array. A pair's two values use different
// halves of it, or 20 bits from either end: the 8 they share are the last that decide about the
// second.
//
// The pairs of a tile, counted from its beginning, lie in rows of 16. The words of the first row
// are a hash of the number of the pair's first element in the shard, under the array's key: a Weyl
// sequence that begins at one half of the key, and one round of xor-shift and multiplication with
// the other half of the key xored in between. Each further row adds kRowStep, one instruction
// instead of eight. So every word is uniform, and independent of those of other columns, tiles,
// arrays and updates; the 8 of a column are spread evenly, which makes the errors of a tile cancel
// sooner than independent ones would. The step is near 5/8 of the range of a word and of its lower
// half, and a tenth of that of its lower 20 bits.
#include <cstdint>

#include "server/optim/rounding_key.h"

#include <hwy/highway.h>

#include "server/optim/kernels/block-inl.h"

#if defined(LUWU_OPTIM_KERNELS_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_RANDOM_INL_H_
#undef LUWU_OPTIM_KERNELS_RANDOM_INL_H_
#else
#define LUWU_OPTIM_KERNELS_RANDOM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using VU = hn::Vec<U32>;

// The words of one array in one tile.
class RandomWords {
 public:
  // `tile`: number of its first element in the shard.
  HWY_INLINE void Begin(const RoundingKey::Array& key, uint32_t tile) {
    for (uint32_t k = 0; k < kVectors; ++k) columns_[k] = Hash(key, tile + 2 * kLanes * k);
  }
  // Those of the pairs from element `i` of the tile on; to be asked for in order.
  HWY_INLINE VU Next(uint64_t i) {
    VU& column = columns_[i / 2 / kLanes % kVectors];
    const VU words = column;
    column = hn::Add(words, hn::Set(U32(), kRowStep));
    return words;
  }

 private:
  static constexpr uint32_t kRow = 16;
  static constexpr uint32_t kRowStep = 0x9E319E37u;
  static constexpr uint32_t kLanes = hn::MaxLanes(U32());
  static constexpr uint32_t kVectors = kRow / kLanes;

  // Of the pairs whose first elements are index, index + 2, ...
  HWY_INLINE static VU Hash(const RoundingKey::Array& key, uint32_t index) {
    constexpr uint32_t kWeyl = 0x9E3779B9u;
    const U32 d;
    const auto steps = hn::Mul(hn::Iota(d, 0), hn::Set(d, 2 * kWeyl));
    auto x = hn::Add(steps, hn::Set(d, key.first + index * kWeyl));
    x = hn::Xor3(x, hn::ShiftRight<16>(x), hn::Set(d, key.second));
    x = hn::Mul(x, hn::Set(d, 0x846CA68Bu));
    return hn::Xor(x, hn::ShiftRight<15>(x));
  }

  VU columns_[kVectors];
};

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
