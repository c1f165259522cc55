// The slots of one worker's inbox as this node sees them: how often each was given back, which are
// held by a contribution, and which of those are being read by an update thread ("pinned").
//
// Pure logic. Not thread-safe: guarded by its job's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "server/step/shard_progress.h"

namespace luwu {

class SlotTable {
 public:
  explicit SlotTable(uint32_t slots) : slots_(slots) {}

  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t released(uint32_t slot) const { return slots_[slot].released; }
  bool held(uint32_t slot) const { return slots_[slot].held; }
  bool pinned(uint32_t slot) const { return slots_[slot].pinned; }
  // The local shard whose contribution holds the slot.
  uint32_t shard(uint32_t slot) const { return slots_[slot].shard; }
  uint32_t held_count() const { return held_; }
  uint32_t pinned_count() const { return pinned_; }

  void Hold(uint32_t slot, uint32_t shard) {
    LUWU_CHECK(!slots_[slot].held, "a slot holds one contribution");
    slots_[slot].held = true;
    slots_[slot].shard = shard;
    ++held_;
  }
  void Pin(uint32_t slot) {
    LUWU_CHECK(slots_[slot].held && !slots_[slot].pinned, "a held slot is read by one task");
    slots_[slot].pinned = true;
    ++pinned_;
  }
  // Gives the slot back, held or not; returns how often that has happened.
  uint32_t Release(uint32_t slot) {
    Slot& state = slots_[slot];
    if (state.held) --held_;
    if (state.pinned) --pinned_;
    state.held = state.pinned = false;
    return ++state.released;
  }
  // For a new session. No slot may be pinned (CHECKed).
  void Reset() {
    LUWU_CHECK(pinned_ == 0, "nobody reads the former session's slots");
    slots_.assign(slots_.size(), Slot());
    held_ = 0;
  }

 private:
  struct Slot {
    uint32_t released = 0;
    uint32_t shard = kNowhere;
    bool held = false;
    bool pinned = false;
  };
  std::vector<Slot> slots_;
  uint32_t held_ = 0;
  uint32_t pinned_ = 0;
};

}  // namespace luwu
