#include "common/wire/slot_trailer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>

#include "common/base/check.h"
#include "common/base/crc32c.h"

namespace luwu {
namespace {

static_assert(std::endian::native == std::endian::little, "wire structs are stored as they lie");

using Words = std::array<uint64_t, kSlotTrailerBytes / 8>;

// A correct writer replaces a trailer once while its reader is at work, since the next use of the
// slot needs the reader's consent. So it can spoil two copies: that of the old trailer and, when it
// ends meanwhile, one of old and new.
constexpr int kLoadTries = 4;

constexpr uint16_t kKnownFlags = kSlotClose | kSlotNoPayload | kSlotPayloadCrc;

uint32_t CrcOf(const SlotTrailer& trailer) {
  return Crc32c(std::as_bytes(std::span(&trailer, 1)).first(offsetof(SlotTrailer, trailer_crc32c)));
}

std::atomic_ref<uint64_t> WordAt(const std::byte* memory, size_t index) {
  // atomic_ref of a const type does not exist in C++20; a reader only loads.
  auto* words = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(memory));
  return std::atomic_ref<uint64_t>(words[index]);
}

Status Malformed(const SlotTrailer& trailer, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument,
               "slot trailer of layer {} shard {} step {} from rank {}: {}; the client and the "
               "daemon must be of compatible releases",
               trailer.layer, trailer.shard, trailer.step, trailer.rank, what);
}

Status CheckFlags(const SlotTrailer& trailer) {
  const uint16_t flags = trailer.flags;
  if ((flags & ~kKnownFlags) != 0) {
    return Malformed(trailer, fmt::format("unknown flags {:#06x}", flags));
  }
  if ((flags & kSlotPayloadCrc) == 0 && trailer.payload_crc32c != 0) {
    return Malformed(trailer, "a payload CRC without its flag");
  }
  if ((flags & kSlotNoPayload) == 0) {
    if (trailer.payload_bytes == 0) return Malformed(trailer, "an empty payload");
    if (trailer.shard == kAllShards) {
      return Malformed(trailer, "a payload for all shards at once");
    }
    return OkStatus();
  }
  if ((flags & kSlotClose) == 0) return Malformed(trailer, "neither a payload nor a close");
  if ((flags & kSlotPayloadCrc) != 0) return Malformed(trailer, "a CRC of no payload");
  if (trailer.payload_bytes != 0) return Malformed(trailer, "payload bytes without a payload");
  return OkStatus();
}

}  // namespace

void SealSlotTrailer(SlotTrailer* trailer) {
  trailer->magic = kSlotTrailerMagic;
  trailer->version = kSlotTrailerVersion;
  std::fill(std::begin(trailer->reserved0), std::end(trailer->reserved0), uint8_t{0});
  trailer->reserved1 = 0;
  trailer->trailer_crc32c = CrcOf(*trailer);
}

void StoreSlotTrailer(const SlotTrailer& trailer, ByteSpan slot_end) {
  LUWU_CHECK(slot_end.size() == kSlotTrailerBytes, "a trailer has its place");
  Words words;
  std::memcpy(words.data(), &trailer, sizeof trailer);
  WordAt(slot_end.data(), 0).store(kSlotTrailerBusy, std::memory_order_relaxed);
  // Each store keeps those before it, the payload's and the mark's included, before it.
  for (size_t i = 1; i < words.size(); ++i) {
    WordAt(slot_end.data(), i).store(words[i], std::memory_order_release);
  }
  WordAt(slot_end.data(), 0).store(words[0], std::memory_order_release);
}

bool LoadSlotTrailer(ConstByteSpan slot_end, SlotTrailer* trailer) {
  LUWU_CHECK(slot_end.size() == kSlotTrailerBytes, "a trailer has its place");
  for (int i = 0; i < kLoadTries; ++i) {
    Words words;
    for (size_t word = 0; word < words.size(); ++word) {
      words[word] = WordAt(slot_end.data(), word).load(std::memory_order_acquire);
    }
    std::memcpy(trailer, words.data(), sizeof *trailer);
    if (trailer->magic == kSlotTrailerBusy) return false;
    if (trailer->trailer_crc32c == CrcOf(*trailer)) break;
  }
  return true;
}

Status CheckSlotTrailer(const SlotTrailer& trailer) {
  if (trailer.magic != kSlotTrailerMagic) {
    return Error(ErrorCode::kCorrupt, "slot trailer: magic {:#010x}, not {:#010x}", trailer.magic,
                 kSlotTrailerMagic);
  }
  if (trailer.trailer_crc32c != CrcOf(trailer)) {
    return Error(ErrorCode::kCorrupt,
                 "slot trailer: its CRC does not match; the slot was damaged or written while it "
                 "was not free");
  }
  if (trailer.version != kSlotTrailerVersion) {
    return Malformed(trailer, fmt::format("layout version {}, this daemon reads {}",
                                          trailer.version, kSlotTrailerVersion));
  }
  const bool reserved_set = trailer.reserved1 != 0 ||
                            std::any_of(std::begin(trailer.reserved0), std::end(trailer.reserved0),
                                        [](uint8_t value) { return value != 0; });
  if (reserved_set) return Malformed(trailer, "reserved fields are set");
  if (trailer.micro_step > kMicroStepMax) {
    return Malformed(
        trailer, fmt::format("micro-step {}, the limit is {}", trailer.micro_step, kMicroStepMax));
  }
  return CheckFlags(trailer);
}

}  // namespace luwu
