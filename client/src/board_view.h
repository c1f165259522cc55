// Reads the board (common/wire/board.h) that one daemon writes into this process. Every word is
// loaded atomically: over shared memory the daemon stores while we look. Any thread; a value.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/wire/board.h"

namespace luwu::client {

class BoardView {
 public:
  BoardView() = default;
  // `memory` holds BoardBytes(slots, shards, whether there is a window) and is 64-byte aligned.
  BoardView(ConstByteSpan memory, uint32_t slots, uint64_t shards)
      : base_(memory.data()),
        published_offset_(BoardPublishedOffset(slots)),
        places_offset_(BoardPlacesOffset(slots, shards)) {}

  // Times the daemon has given `slot` back.
  uint32_t released(uint32_t slot) const {
    return Load<uint32_t>(BoardReleasedOffset() + sizeof(uint32_t) * slot);
  }
  // Newest readable version of a local shard, plus one; 0: none.
  uint64_t published(uint32_t local_shard) const {
    return Load<uint64_t>(published_offset_ + sizeof(uint64_t) * local_shard);
  }
  // Only with a window: where a copy is in it (WindowPlace::word).
  uint64_t place(uint32_t local_shard, uint64_t version) const {
    return Load<uint64_t>(places_offset_ + sizeof(uint64_t) * (2 * local_shard + version % 2));
  }
  uint64_t current_step() const { return Load<uint64_t>(offsetof(BoardHeader, current_step)); }

  bool has_fault() const { return Load<uint32_t>(offsetof(BoardHeader, fault_code)) != 0; }
  // Why the daemon ended this session; OK while it has not.
  Status fault() const {
    const uint32_t code = Load<uint32_t>(offsetof(BoardHeader, fault_code));
    if (code == 0) return OkStatus();
    char text[sizeof(BoardHeader::fault_text)];
    std::memcpy(text, base_ + offsetof(BoardHeader, fault_text), sizeof text);
    const std::string message(text, ::strnlen(text, sizeof text));
    return MakeError(static_cast<ErrorCode>(-static_cast<int32_t>(code)), message);
  }

 private:
  template <typename T>
  T Load(uint64_t offset) const {
    const void* address = base_ + offset;
    return __atomic_load_n(static_cast<const T*>(address), __ATOMIC_ACQUIRE);
  }

  const std::byte* base_ = nullptr;
  uint64_t published_offset_ = 0;
  uint64_t places_offset_ = 0;
};

}  // namespace luwu::client
