// Credits: which inbox slots of one node this session may write. The daemon counts the releases of
// each slot on the board; the ledger counts the uses. A slot is free when the two are equal and no
// operation holds it. Survives a relink: counts belong to the session, not to the link.
//
// Externally synchronised (the session's monitor). Cannot fail; `Take` finds nothing when every
// slot is in use, and the caller waits for the board.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/src/board_view.h"

namespace luwu::client {

// What a slot was filled with, to find it again after a push that ended in doubt.
struct SlotKey {
  uint32_t layer = 0;
  uint32_t shard = 0;  // or kAllShards
  uint32_t micro_step = 0;
  uint64_t step = 0;
  bool operator==(const SlotKey&) const = default;
};

class SlotLedger {
 public:
  explicit SlotLedger(uint32_t slots) : slots_(slots) {}

  uint32_t slots() const { return static_cast<uint32_t>(slots_.size()); }

  // A free slot, now held for `key`. The slot that an earlier operation left in doubt with this
  // key comes first: its bytes must go out again under the same sequence number.
  std::optional<uint32_t> Take(const SlotKey& key, const BoardView& board);
  // Uses before the present one: SlotTrailer::slot_sequence.
  uint32_t sequence(uint32_t slot) const { return slots_[slot].uses; }
  // True when the daemon has already taken and released the present use (its completion was lost).
  bool IsConsumed(uint32_t slot, const BoardView& board) const {
    return board.released(slot) == slots_[slot].uses + 1;
  }

  // The daemon's memory holds the slot; it is free again once the board says so.
  void Delivered(uint32_t slot);
  // Nothing was sent: free at once.
  void GiveBack(uint32_t slot) { slots_[slot].state = State::kIdle; }
  // Sent with unknown result: only a push with the same key may use it again.
  void LeaveInDoubt(uint32_t slot);

  // A delivered slot that the board does not show as released: after a relink its notification is
  // repeated, in case it was lost with the old link. Held until Renotified.
  bool BeginRenotify(uint32_t slot, const BoardView& board);
  void EndRenotify(uint32_t slot) { slots_[slot].state = State::kIdle; }

  uint32_t held() const;

 private:
  enum class State : uint8_t { kIdle, kHeld, kInDoubt, kRenotify };
  struct Slot {
    uint32_t uses = 0;
    State state = State::kIdle;
    SlotKey key;
  };

  std::vector<Slot> slots_;
  uint32_t next_ = 0;  // where the search for a free slot starts
  uint32_t in_doubt_ = 0;
};

}  // namespace luwu::client
