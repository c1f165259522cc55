// What a worker knows of the copies in one daemon's window (common/wire/window.h) beside what the
// board says: which it has asked for, and which have gone from the place that the board still
// names. Guarded by the session's monitor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/shard_map.h"

namespace luwu::client {

class WantLedger {
 public:
  WantLedger() = default;
  // Nothing is in it without a window.
  WantLedger(const ShardMap& map, uint32_t world_size)
      : ahead_(std::max(1u, map.window_slots() / (2 * world_size))),
        entries_(map.has_window() ? 2 * map.shard_count() : 0) {}

  // How many copies a fetch may have asked for that it has not read yet: all workers together
  // leave half of the window to what is being read and written.
  uint32_t ahead() const { return ahead_; }

  // True when the copy is to be asked for, now. A wish can be lost with its link, so it is
  // repeated.
  bool Ask(uint32_t shard, uint64_t version, TimePoint now) {
    Entry& entry = At(shard, version);
    if (now < entry.again_at) return false;
    entry.again_at = now + Milliseconds(kAgainMs);
    return true;
  }
  TimePoint again_at(uint32_t shard, uint64_t version) const { return At(shard, version).again_at; }

  // Whether the copy may be where the board says.
  bool Trust(uint32_t shard, uint64_t version, uint64_t residence) {
    Entry& entry = At(shard, version);
    if (residence == 0 || residence == entry.gone) return false;
    entry.again_at = {};  // the wish came true; the next one is a new one
    return true;
  }
  void NoteGone(uint32_t shard, uint64_t version, uint64_t residence) {
    At(shard, version).gone = residence;
  }

 private:
  static constexpr uint64_t kAgainMs = 100;
  struct Entry {
    TimePoint again_at;
    uint64_t gone = 0;
  };
  Entry& At(uint32_t shard, uint64_t version) { return entries_[2 * shard + version % 2]; }
  const Entry& At(uint32_t shard, uint64_t version) const {
    return entries_[2 * shard + version % 2];
  }

  uint32_t ahead_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace luwu::client
