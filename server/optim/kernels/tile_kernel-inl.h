// What happens to one tile: the sum of a block of gradients, the optimizer's rule on each pair of
// vectors, new state, the served copy. update-inl.h says what a rule is and walks over the tiles.
// Included once per SIMD target by update-inl.h; no state.
#include <hwy/highway.h>

#include "server/optim/kernels/serve-inl.h"
#include "server/optim/kernels/tile_state-inl.h"

#if defined(LUWU_OPTIM_KERNELS_TILE_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_TILE_KERNEL_INL_H_
#undef LUWU_OPTIM_KERNELS_TILE_KERNEL_INL_H_
#else
#define LUWU_OPTIM_KERNELS_TILE_KERNEL_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What a rule in parts leaves for later; nothing for a rule in one part.
struct NoRest {};
template <class Rule>
struct RestOf {
  using Type = NoRest;
};
template <class Rule>
requires requires { typename Rule::Rest; }
struct RestOf<Rule> {
  using Type = typename Rule::Rest;
};

// A rule in one choice of formats: its tile kernel.
template <class Rule, StatePrecision kPrecision, bool kSplit, bool kStream>
class TileKernel {
 public:
  using State = TileState<Rule, kPrecision, kSplit, kStream>;
  static constexpr bool kInParts = requires { typename Rule::Rest; };

  // A rule in parts is finished for a pair while the next one has begun: the division unit, which
  // such rules wait for, then always has something to do, and what waits for it does not fill up
  // the CPU's window.
  HWY_INLINE static void Run(const Rule& rule, const RoundingKey& key, const SumArgs& sources,
                             const TileArrays& tile, NormLanes* norm) {
    const uint64_t half = 2 * hn::Lanes(F32());
    const bool prefetch = sources.gradients.size() >= kPrefetchSourcesMin;
    const Work work = {rule, tile, DTypeBytes(tile.served_dtype)};
    typename State::Running running;
    typename State::Waiting waiting;
    State::Begin(key, tile.index, &waiting, &running);
    NormVectors squares;
    Load(*norm, &squares);
    Begun late = {};
    for (uint64_t i = 0; i < tile.count; i += BlockElements()) {
      if (State::kIs16 && i > 0 && i % kQuantBlock == 0) {
        State::Begin(key, tile.index + static_cast<uint32_t>(i), &waiting, &running);
      }
      if (prefetch && i % kStep == 0) {
        PrefetchSources(sources.gradients, tile.at + i);
        State::Prefetch(tile, i);
      }
      const Block gradient = TakeSum<State::kPaired>(sources, tile.at + i, i, &squares);
      const Begun soon = Begin(work, i, Low(gradient));
      if constexpr (kInParts) {
        StoreMoments(work, i, soon, &running);
        if (i > 0) FinishAndServe(work, i - half, late);
        late = Begin(work, i + half, High(gradient));
        StoreMoments(work, i + half, late, &running);
        FinishAndServe(work, i, soon);
      } else {
        late = Begin(work, i + half, High(gradient));
        const Pair low = Finish(work, i, soon), high = Finish(work, i + half, late);
        StoreMoments(work, i, soon, &running);
        StoreMoments(work, i + half, late, &running);
        ServeBoth(work, i, low, high);
      }
    }
    if constexpr (kInParts) FinishAndServe(work, tile.count - half, late);
    Store(squares, norm);
    if constexpr (State::kIs8) State::EncodeWaiting(key, tile, running);
  }

 private:
  struct Work {
    const Rule& rule;
    const TileArrays& tile;
    uint64_t served_bytes;
  };
  struct Begun {
    Pair master, first, second, third;
    typename RestOf<Rule>::Type even, odd;
  };

  // The rule, as far as the moments of the pair at `i` of the tile.
  HWY_INLINE static Begun Begin(const Work& work, uint64_t i, Pair gradient) {
    const auto& [rule, tile, served_bytes] = work;
    const V32 zero = hn::Zero(F32());
    const Pair zeros = {zero, zero};
    Begun begun = {State::LoadMaster(tile, i), zeros, zeros, zeros, {}, {}};
    auto& [master, first, second, third, even, odd] = begun;
    if constexpr (State::kArrays > 1) first = State::template LoadMoment<1>(tile, i);
    if constexpr (State::kArrays > 2) second = State::template LoadMoment<2>(tile, i);
    if constexpr (State::kArrays > 3) third = State::template LoadMoment<3>(tile, i);
    if constexpr (kInParts) {
      rule.Decay(&gradient, &master);
      rule.Begin(gradient.even, first.even, second.even, third.even, even);
      rule.Begin(gradient.odd, first.odd, second.odd, third.odd, odd);
    } else {
      rule(gradient.even, master.even, first.even, second.even, third.even);
      rule(gradient.odd, master.odd, first.odd, second.odd, third.odd);
    }
    return begun;
  }

  HWY_INLINE static void StoreMoments(const Work& work, uint64_t i, const Begun& begun,
                                      typename State::Running* running) {
    const auto& [rule, tile, served_bytes] = work;
    if constexpr (State::kArrays > 1) {
      State::template StoreMoment<1>(begun.first, tile, i, running);
    }
    if constexpr (State::kArrays > 2) {
      State::template StoreMoment<2>(begun.second, tile, i, running);
    }
    if constexpr (State::kArrays > 3) {
      State::template StoreMoment<3>(begun.third, tile, i, running);
    }
  }

  // Stores the new master and returns it.
  HWY_INLINE static Pair Finish(const Work& work, uint64_t i, Begun begun) {
    Pair& master = begun.master;
    if constexpr (kInParts) {
      work.rule.Divide(begun.even);
      work.rule.Divide(begun.odd);
      work.rule.End(begun.even, master.even);
      work.rule.End(begun.odd, master.odd);
    }
    State::StoreMaster(master, work.tile, i);
    return master;
  }
  HWY_INLINE static void FinishAndServe(const Work& work, uint64_t i, const Begun& begun) {
    Pair master = Finish(work, i, begun);
    if constexpr (kSplit) return;  // StoreMaster has served it
    if (HWY_UNLIKELY(MayHoldNaN(master)) && work.tile.served_dtype == DType::kBFloat16) {
      master = WithShortNaNs(master);
    }
    ServePair(work, i, master);
  }
  // The two pairs of a block: one look for NaNs.
  HWY_INLINE static void ServeBoth(const Work& work, uint64_t i, Pair low, Pair high) {
    if constexpr (kSplit) return;
    if (HWY_UNLIKELY(MayHoldNaN(low, high)) && work.tile.served_dtype == DType::kBFloat16) {
      low = WithShortNaNs(low);
      high = WithShortNaNs(high);
    }
    ServePair(work, i, low);
    ServePair(work, i + 2 * hn::Lanes(F32()), high);
  }
  HWY_INLINE static void ServePair(const Work& work, uint64_t i, const Pair& master) {
    const TileArrays& tile = work.tile;
    std::byte* served = tile.served + i * work.served_bytes;
    if (tile.stream_served) {
      Serve<true, State::kPaired>(master, tile.served_dtype, served);
    } else {
      Serve<false, State::kPaired>(master, tile.served_dtype, served);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
