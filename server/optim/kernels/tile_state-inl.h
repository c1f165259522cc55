// The arrays of one tile in one choice of formats: how a pair of vectors is read from them and
// written back, and how 8-bit moments wait for the scale of their block. Included once per SIMD
// target by tile_kernel-inl.h; no state.
#include "server/optim/kernels/tile_arrays.h"
#include "server/optim/registry.h"

#include <hwy/highway.h>

#include "server/optim/kernels/code8-inl.h"
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
  static constexpr bool kIs16 = kPrecision == StatePrecision::kBFloat16 && Rule::kMoments > 0;
  // Whether pairs are even and odd elements (when an array is not fp32), not two halves in order.
  static constexpr bool kPaired =
      kSplit || (kPrecision != StatePrecision::kFloat32 && Rule::kMoments > 0);
  static constexpr StateFormat Format(uint32_t array) {
    if (array == 0) return kSplit ? StateFormat::kLow16 : StateFormat::kFloat32;
    return FormatOf(kPrecision, Rule::kRoles[array - 1]);
  }

  // 8-bit moments of a tile, until the scale of their block is known.
  struct Waiting {
    alignas(64) float moments[kIs8 ? Rule::kMoments : 1][kIs8 ? kQuantBlock : 1];
  };
  // What a tile's moments need on the way: the random words of bf16; where 8-bit ones wait for the
  // scale of their block, and their largest magnitudes so far.
  struct Running {
    RandomWords words[kStateArraysMax - 1];
    float* waiting[kStateArraysMax - 1];
    V32 largest[kStateArraysMax - 1];
  };
  // At a tile's first element, number `index` of the shard.
  HWY_INLINE static void Begin(const RoundingKey& key, uint32_t index, Waiting* waiting,
                               Running* running) {
    for (uint32_t k = 0; k < Rule::kMoments; ++k) {
      if constexpr (kIs8) running->waiting[k] = waiting->moments[k];
      if constexpr (kIs8) running->largest[k] = hn::Zero(F32());
      if constexpr (kIs16) running->words[k].Begin(key.arrays[k], index);
    }
  }

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
      uint16_t* served = AsHalves(tile.served) + i;
      if (tile.stream_served) {
        StoreSplit<true>(master, served, AsHalves(tile.out[0]) + i);
      } else {
        StoreSplit<false>(master, served, AsHalves(tile.out[0]) + i);
      }
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
      const Pair share = LoadShares<kFormat == StateFormat::kSigned8>(AsCodes(tile.in[kArray]) + i);
      const V32 scale = hn::Set(F32(), tile.scale_in[kArray]);
      return {hn::Mul(share.even, scale), hn::Mul(share.odd, scale)};
    }
  }
  template <uint32_t kArray>
  HWY_INLINE static void StoreMoment(const Pair& value, const TileArrays& tile, uint64_t i,
                                     Running* running) {
    constexpr StateFormat kFormat = Format(kArray);
    if constexpr (kFormat == StateFormat::kFloat32) {
      StoreFloats(value, tile.out[kArray], i);
    } else if constexpr (kFormat == StateFormat::kBFloat16) {
      const VU rounded = RoundToBFloat16(value, running->words[kArray - 1].Next(i));
      StorePairs16(rounded, AsHalves(tile.out[kArray]) + i);
    } else {
      constexpr bool kSign = kFormat == StateFormat::kSigned8;
      V32& largest = running->largest[kArray - 1];
      largest = kSign ? MaxMagnitude(value.even, largest) : hn::Max(largest, value.even);
      largest = kSign ? MaxMagnitude(value.odd, largest) : hn::Max(largest, value.odd);
      float* to = running->waiting[kArray - 1] + i;
      hn::Store(value.even, F32(), to);
      hn::Store(value.odd, F32(), to + hn::Lanes(F32()));
    }
  }

  // The codes of a tile's 8-bit moments.
  HWY_INLINE static void EncodeWaiting(const RoundingKey& key, const TileArrays& tile,
                                       const Running& running) {
    EncodeMoment<1>(key, tile, running);
    if constexpr (kArrays > 2) EncodeMoment<2>(key, tile, running);
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

  template <uint32_t kArray>
  HWY_INLINE static void EncodeMoment(const RoundingKey& key, const TileArrays& tile,
                                      const Running& running) {
    constexpr bool kSign = Format(kArray) == StateFormat::kSigned8;
    const F32 d;
    const uint64_t n = hn::Lanes(d);
    const V32 largest = hn::MaxOfLanes(d, running.largest[kArray - 1]);
    const float scale = ScaleOfBlock(hn::GetLane(largest));
    *tile.scale_out[kArray] = scale;
    const V32 inverse = hn::Set(d, 1.0f / scale);
    RandomWords words;
    words.Begin(key.arrays[kArray - 1], tile.index);
    uint8_t* codes = AsCodes(tile.out[kArray]);
    for (uint64_t i = 0; i < tile.count; i += BlockElements()) {
      const float* from = running.waiting[kArray - 1] + i;
      const Pair low = {hn::Load(d, from), hn::Load(d, from + n)};
      const Pair high = {hn::Load(d, from + 2 * n), hn::Load(d, from + 3 * n)};
      const VU low_codes = Encode8<kSign>(low, inverse, words.Next(i));
      StoreCodes(low_codes, Encode8<kSign>(high, inverse, words.Next(i + 2 * n)), codes + i);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
