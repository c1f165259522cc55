// The last bytes of a gradient slot, as a worker may have left them: as they are, and signed, so
// that they come past the checksum. What is accepted keeps the promises that its readers rely on.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/wire/slot_trailer.h"

namespace luwu {
namespace {

// Of what readers compute from an accepted trailer without asking again.
void CheckAccepted(const SlotTrailer& trailer) {
  const bool payload = (trailer.flags & kSlotNoPayload) == 0;
  LUWU_CHECK(payload == (trailer.payload_bytes > 0), "a payload has bytes, and only a payload");
  LUWU_CHECK(payload || (trailer.flags & kSlotClose) != 0, "it brings something or ends something");
  LUWU_CHECK(!payload || trailer.shard != kAllShards, "a payload is of one shard");
  LUWU_CHECK((trailer.flags & kSlotPayloadCrc) != 0 || trailer.payload_crc32c == 0,
             "no checksum without its flag");
  LUWU_CHECK(trailer.micro_step <= kMicroStepMax, "micro-steps are bounded");
  SlotTrailer again = trailer;
  SealSlotTrailer(&again);
  LUWU_CHECK(std::memcmp(&again, &trailer, sizeof again) == 0, "one form only of a trailer");
}

void Try(const SlotTrailer& trailer) {
  if (CheckSlotTrailer(trailer).ok()) CheckAccepted(trailer);
}

int TrySlot(const uint8_t* data, size_t size) {
  alignas(8) std::array<std::byte, kSlotTrailerBytes> slot_end = {};
  if (size > 0) std::memcpy(slot_end.data(), data, std::min(size, slot_end.size()));
  SlotTrailer trailer;
  if (!LoadSlotTrailer(slot_end, &trailer)) {
    LUWU_CHECK(trailer.magic == kSlotTrailerBusy, "only a busy trailer is not loaded");
    return 0;
  }
  LUWU_CHECK(std::memcmp(&trailer, slot_end.data(), sizeof trailer) == 0, "what lies there");
  Try(trailer);
  SealSlotTrailer(&trailer);
  Try(trailer);
  StoreSlotTrailer(trailer, slot_end);
  LUWU_CHECK(std::memcmp(&trailer, slot_end.data(), sizeof trailer) == 0, "what was stored");
  return 0;
}

}  // namespace
}  // namespace luwu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::TrySlot(data, size);
}
