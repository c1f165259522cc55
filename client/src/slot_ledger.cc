#include "client/src/slot_ledger.h"

namespace luwu::client {

std::optional<uint32_t> SlotLedger::Take(const SlotKey& key, const BoardView& board) {
  if (in_doubt_ > 0) {
    for (uint32_t i = 0; i < slots(); ++i) {
      if (slots_[i].state != State::kInDoubt || !(slots_[i].key == key)) continue;
      slots_[i].state = State::kHeld;
      --in_doubt_;
      return i;
    }
  }
  for (uint32_t tried = 0; tried < slots(); ++tried) {
    const uint32_t i = (next_ + tried) % slots();
    Slot& slot = slots_[i];
    if (slot.state != State::kIdle || board.released(i) != slot.uses) continue;
    slot.state = State::kHeld;
    slot.key = key;
    next_ = (i + 1) % slots();
    return i;
  }
  return std::nullopt;
}

void SlotLedger::Delivered(uint32_t slot) {
  ++slots_[slot].uses;
  slots_[slot].state = State::kIdle;
}

void SlotLedger::LeaveInDoubt(uint32_t slot) {
  slots_[slot].state = State::kInDoubt;
  ++in_doubt_;
}

bool SlotLedger::BeginRenotify(uint32_t slot, const BoardView& board) {
  Slot& entry = slots_[slot];
  if (entry.state != State::kIdle || board.released(slot) == entry.uses) return false;
  entry.state = State::kRenotify;
  return true;
}

uint32_t SlotLedger::held() const {
  uint32_t count = 0;
  for (const Slot& slot : slots_) count += slot.state == State::kHeld;
  return count;
}

}  // namespace luwu::client
