// Copies into and out of memory that a peer looks at while we copy (the board's counters): an
// aligned 4- or 8-byte piece is one atomic access, small pieces go in ascending 8-byte words, and
// larger ones are a plain memcpy. Any thread; cannot fail.
#pragma once

#include "common/base/bytes.h"

namespace luwu::transport {

// Up to this size no aligned 8-byte word is ever seen half written.
inline constexpr uint64_t kWordwiseBytesMax = 4096;

// `to` is shared; `from` is not.
void StoreBytes(std::byte* to, ConstByteSpan from);
// `from` is shared; `to` is not.
void LoadBytes(std::byte* to, ConstByteSpan from);

// Between plain stores to shared memory and the message that announces them, and between that
// message and loads. (The socket's own locks order them too; this does not rely on it.)
void FenceBeforeAnnouncing();
void FenceAfterAnnouncement();

}  // namespace luwu::transport
