#include "tests/bench/optimizer/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/optimizer/stream.cc"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luwu::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<uint32_t>;
using V = hn::Vec<Words>;

HWY_INLINE const uint32_t* WordsAt(const std::byte* data) {
  return reinterpret_cast<const uint32_t*>(data);
}
HWY_INLINE uint32_t* WordsAt(std::byte* data) { return reinterpret_cast<uint32_t*>(data); }

template <bool kStream>
HWY_INLINE void Put(V value, std::byte* target) {
  if constexpr (kStream) {
    hn::Stream(value, Words(), WordsAt(target));
  } else {
    hn::Store(value, Words(), WordsAt(target));
  }
}

// The sources' bits of 64 elements, joined.
HWY_INLINE V JoinSources(const StreamShard& shard, uint64_t unit, uint32_t prefetch_bytes) {
  const uint64_t step = hn::Lanes(Words()) * sizeof(uint32_t);
  V joined = hn::Zero(Words());
  for (const std::byte* source : shard.sources) {
    const std::byte* from = source + unit * shard.source_bytes;
    if (prefetch_bytes > 0) {
      for (uint64_t at = 0; at < shard.source_bytes; at += 64) {
        hwy::Prefetch(from + prefetch_bytes + at);
      }
    }
    for (uint64_t at = 0; at < shard.source_bytes; at += step) {
      joined = hn::Or(joined, hn::Load(Words(), WordsAt(from + at)));
    }
  }
  return joined;
}

template <bool kState, bool kServed>
HWY_NOINLINE void StreamAll(const StreamShard shard, uint32_t prefetch_bytes) {
  const uint64_t step = hn::Lanes(Words()) * sizeof(uint32_t);
  for (uint64_t unit = 0; unit < shard.count / 64; ++unit) {
    const V joined = JoinSources(shard, unit, prefetch_bytes);
    const V nothing = hn::And(joined, hn::Zero(Words()));
    for (uint32_t k = 0; k < shard.states; ++k) {
      const uint64_t first = unit * shard.state_bytes[k];
      for (uint64_t at = first; at < first + shard.state_bytes[k]; at += step) {
        Put<kState>(hn::Or(hn::Load(Words(), WordsAt(shard.in[k] + at)), nothing),
                    shard.out[k] + at);
      }
    }
    const uint64_t first = unit * shard.served_bytes;
    for (uint64_t at = first; at < first + shard.served_bytes; at += step) {
      Put<kServed>(joined, shard.served + at);
    }
    if (shard.held == nullptr) continue;
    for (uint64_t at = unit * 256; at < unit * 256 + 256; at += step) {
      Put<kServed>(joined, shard.held + at);
    }
  }
  hwy::FlushStream();
}

void StreamShardOnce(const StreamShard& shard, const StreamStyle& style) {
  const uint32_t ahead = style.prefetch_lines * 64;
  if (style.stream_state) {
    style.stream_served ? StreamAll<true, true>(shard, ahead)
                        : StreamAll<true, false>(shard, ahead);
  } else {
    style.stream_served ? StreamAll<false, true>(shard, ahead)
                        : StreamAll<false, false>(shard, ahead);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::bench {

HWY_EXPORT(StreamShardOnce);

void Stream(const StreamShard& shard, const StreamStyle& style) {
  HWY_DYNAMIC_DISPATCH(StreamShardOnce)(shard, style);
}

}  // namespace luwu::bench
#endif  // HWY_ONCE
