// The arrays of one tile in one choice of formats: how a pair of vectors is read from them and
// written back, and how 8-bit moments wait for the scale of their block. Included once per SIMD
// target by tile_kernel-inl.h; no state.
#include "server/optim/kernels/tile_arrays.h"
#include "server/optim/registry.h"

#include <hwy/highway.h>

#include "server/optim/kernels/state-inl.h"
#include "server/optim/kernels/tile-inl.h"

#if defined(LUWU_OPTIM_KERNELS_TILE_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_TILE_STATE_INL_H_
#undef LUWU_OPTIM_KERNELS_TILE_STATE_INL_H_
#else
#define LUWU_OPTIM_KERNELS_TILE_STATE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// kStream: fp32 arrays are written past the caches, others to a scratch tile in the cache.
template <class Rule, StatePrecision kPrecision, bool kSplit, bool kStream>
class TileState {
 public:
  static constexpr uint32_t kArrays = 1 + Rule::kMoments;
  static constexpr bool kIs8 = kPrecision == StatePrecision::kBlockwise8 && Rule::kMoments > 0;
  // Whether pairs are even and odd elements (when an array is not fp32), not two halves in order.
  static constexpr bool kPaired =
      kSplit || (kPrecision != StatePrecision::kFloat32 && Rule::kMoments > 0);
  static constexpr StateFormat Format(uint32_t array) {
    if (array == 0) return kSplit ? StateFormat::kLow16 : StateFormat::kFloat32;
    return FormatOf(kPrecision, Rule::kRoles[array - 1]);
  }

  // Values of 8-bit arrays between the update and the scale of their block.
  struct Pending {
    alignas(64) float values[kIs8 ? Rule::kMoments : 1][kIs8 ? kQuantBlock : 1];
    V32 largest[kStateArraysMax - 1];
  };

  HWY_INLINE static void Prefetch(const TileArrays& tile, uint64_t at) {
    if constexpr (kSplit) PrefetchStep<2>(tile.served_in + 2 * at);
    PrefetchArrays(tile, at, std::make_integer_sequence<uint32_t, kArrays>());
  }

  HWY_INLINE static Pair LoadMaster(const TileArrays& tile, uint64_t i) {
    if constexpr (kSplit) {
      return LoadSplit(AsHalves(tile.served_in) + i, AsHalves(tile.in[0]) + i);
    } else {
      return LoadFloats(tile.in[0], i);
    }
  }
  HWY_INLINE static void StoreMaster(const Pair& master, const TileArrays& tile, uint64_t i) {
    if constexpr (kSplit) {
      StoreSplit(master, AsHalves(tile.served) + i, AsHalves(tile.out[0]) + i);
    } else {
      StoreFloats(master, tile.out[0], i);
    }
  }

  template <uint32_t kArray>
  HWY_INLINE static Pair LoadMoment(const TileArrays& tile, uint64_t i) {
    constexpr StateFormat kFormat = Format(kArray);
    if constexpr (kFormat == StateFormat::kFloat32) {
      return LoadFloats(tile.in[kArray], i);
    } else if constexpr (kFormat == StateFormat::kBFloat16) {
      return LoadBFloat16Pair(tile.in[kArray] + 2 * i);
    } else {
      constexpr bool kSign = kFormat == StateFormat::kSigned8;
      const Pair share = Decode8<kSign>(LoadCodes(AsCodes(tile.in[kArray]) + i));
      const V32 scale = hn::Set(F32(), tile.scale_in[kArray]);
      return {hn::Mul(share.even, scale), hn::Mul(share.odd, scale)};
    }
  }
  template <uint32_t kArray>
  HWY_INLINE static void StoreMoment(const Pair& value, const RoundingKey& key,
                                     const TileArrays& tile, uint64_t i, Pending* pending) {
    constexpr StateFormat kFormat = Format(kArray);
    if constexpr (kFormat == StateFormat::kFloat32) {
      StoreFloats(value, tile.out[kArray], i);
    } else if constexpr (kFormat == StateFormat::kBFloat16) {
      const VU rounded = RoundToBFloat16(value, Random(key, kArray, tile, i));
      StorePairs16(rounded, AsHalves(tile.out[kArray]) + i);
    } else {
      constexpr bool kSign = kFormat == StateFormat::kSigned8;
      V32& largest = pending->largest[kArray - 1];
      largest = hn::Max(largest, kSign ? hn::Abs(value.even) : value.even);
      largest = hn::Max(largest, kSign ? hn::Abs(value.odd) : value.odd);
      float* to = pending->values[kArray - 1] + i;
      hn::Store(value.even, F32(), to);
      hn::Store(value.odd, F32(), to + hn::Lanes(F32()));
    }
  }

  HWY_INLINE static void EncodePending(const RoundingKey& key, const TileArrays& tile,
                                       const Pending& pending) {
    const F32 d;
    V32 inverse[kStateArraysMax - 1];
    for (uint32_t k = 0; k < Rule::kMoments; ++k) {
      const float largest = hn::GetLane(hn::MaxOfLanes(d, pending.largest[k]));
      const float scale = ScaleOfBlock(largest);
      *tile.scale_out[k + 1] = scale;
      inverse[k] = hn::Set(d, 1.0f / scale);
    }
    for (uint64_t i = 0; i < tile.count; i += 2 * hn::Lanes(d)) {
      EncodeMoment<1>(key, tile, i, pending, inverse);
      if constexpr (kArrays > 2) EncodeMoment<2>(key, tile, i, pending, inverse);
      if constexpr (kArrays > 3) EncodeMoment<3>(key, tile, i, pending, inverse);
    }
  }

 private:
  template <uint32_t... kArray>
  HWY_INLINE static void PrefetchArrays(const TileArrays& tile, uint64_t at,
                                        std::integer_sequence<uint32_t, kArray...>) {
    (PrefetchStep<FormatBytes(Format(kArray))>(tile.in[kArray] + FormatBytes(Format(kArray)) * at),
     ...);
  }

  HWY_INLINE static Pair LoadFloats(const std::byte* array, uint64_t i) {
    const F32 d;
    const float* from = AsFloats(array) + i;
    const V32 low = hn::LoadU(d, from), high = hn::LoadU(d, from + hn::Lanes(d));
    if constexpr (kPaired) return Deinterleave(low, high);
    return {low, high};
  }
  HWY_INLINE static void StoreFloats(const Pair& value, std::byte* array, uint64_t i) {
    float* to = AsFloats(array) + i;
    StoreVector<kStream>(kPaired ? InterleaveLow(value) : value.even, to);
    StoreVector<kStream>(kPaired ? InterleaveHigh(value) : value.odd, to + hn::Lanes(F32()));
  }

  HWY_INLINE static VU Random(const RoundingKey& key, uint32_t array, const TileArrays& tile,
                              uint64_t i) {
    return RandomPairs(key.arrays[array - 1], tile.index + static_cast<uint32_t>(i));
  }

  template <uint32_t kArray>
  HWY_INLINE static void EncodeMoment(const RoundingKey& key, const TileArrays& tile, uint64_t i,
                                      const Pending& pending, const V32* inverse) {
    const F32 d;
    const float* from = pending.values[kArray - 1] + i;
    const Pair value = {hn::Load(d, from), hn::Load(d, from + hn::Lanes(d))};
    Encode8<Format(kArray) == StateFormat::kSigned8>(
        value, inverse[kArray - 1], Random(key, kArray, tile, i), AsCodes(tile.out[kArray]) + i);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
