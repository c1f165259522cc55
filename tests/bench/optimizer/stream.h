// The ceiling of an update: the loads and stores of a case, with no arithmetic worth mentioning. It
// tries what the engine may try as well (streaming stores, software prefetch), so that the best of
// the attempts is what this memory can do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace luwu::bench {

inline constexpr uint32_t kStreamStatesMax = 5;

// One shard. Byte counts are for 64 elements; all arrays are aligned to 64 bytes.
struct StreamShard {
  uint64_t count = 0;                         // elements, a multiple of 64
  std::span<const std::byte* const> sources;  // read only
  uint64_t source_bytes = 0;
  uint32_t states = 0;  // read, and written to `out`, which may be the same
  std::array<const std::byte*, kStreamStatesMax> in = {};
  std::array<std::byte*, kStreamStatesMax> out = {};
  std::array<uint64_t, kStreamStatesMax> state_bytes = {};
  std::byte* served = nullptr;  // written only
  uint64_t served_bytes = 0;
  std::byte* held = nullptr;  // fp32, written only; may be null
};

struct StreamStyle {
  bool stream_state = false;  // past the caches; only when out is not in
  bool stream_served = false;
  uint32_t prefetch_lines = 0;  // of each source, ahead; 0: left to the hardware
};

void Stream(const StreamShard& shard, const StreamStyle& style);

}  // namespace luwu::bench
