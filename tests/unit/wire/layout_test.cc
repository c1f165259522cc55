// Golden layouts: a daemon and a client of different builds must agree on every byte.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "common/base/bytes.h"
#include "common/wire/board.h"
#include "common/wire/shard_header.h"
#include "common/wire/slot_trailer.h"
#include "common/wire/window.h"

namespace luwu {
namespace {

template <typename T>
std::string Hex(const T& object) {
  std::string out;
  for (const std::byte byte : std::as_bytes(std::span(&object, 1))) {
    out += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return out;
}

TEST(WireLayoutTest, ShardHeaderOffsets) {
  EXPECT_EQ(offsetof(ShardHeader, magic), 0u);
  EXPECT_EQ(offsetof(ShardHeader, dtype), 4u);
  EXPECT_EQ(offsetof(ShardHeader, reserved0), 5u);
  EXPECT_EQ(offsetof(ShardHeader, epoch), 8u);
  EXPECT_EQ(offsetof(ShardHeader, version), 16u);
  EXPECT_EQ(offsetof(ShardHeader, layer), 24u);
  EXPECT_EQ(offsetof(ShardHeader, shard), 28u);
  EXPECT_EQ(offsetof(ShardHeader, payload_bytes), 32u);
  EXPECT_EQ(offsetof(ShardHeader, payload_crc32c), 40u);
  EXPECT_EQ(offsetof(ShardHeader, reserved1), 44u);
  EXPECT_EQ(offsetof(ShardHeader, residence), 48u);
  EXPECT_EQ(offsetof(ShardHeader, reserved2), 56u);
  EXPECT_EQ(offsetof(ShardHeader, header_crc32c), 60u);
}

TEST(WireLayoutTest, ShardHeaderBytes) {
  ShardHeader header;
  std::memset(&header, 0xff, sizeof header);
  header.dtype = static_cast<uint8_t>(DType::kBFloat16);
  header.epoch = 0x0102030405060708;
  header.version = 9;
  header.layer = 0x11121314;
  header.shard = 0x21222324;
  header.payload_bytes = 0x200000;
  header.payload_crc32c = 0xdeadbeef;
  header.residence = 0x3132333435;
  SealShardHeader(&header);
  EXPECT_EQ(Hex(header).substr(0, 120),
            "4c574853"
            "02"
            "000000"
            "0807060504030201"
            "0900000000000000"
            "14131211"
            "24232221"
            "0000200000000000"
            "efbeadde"
            "00000000"
            "3534333231000000"
            "00000000");
}

TEST(WireLayoutTest, SlotTrailerOffsets) {
  EXPECT_EQ(offsetof(SlotTrailer, magic), 0u);
  EXPECT_EQ(offsetof(SlotTrailer, version), 4u);
  EXPECT_EQ(offsetof(SlotTrailer, flags), 6u);
  EXPECT_EQ(offsetof(SlotTrailer, epoch), 8u);
  EXPECT_EQ(offsetof(SlotTrailer, step), 16u);
  EXPECT_EQ(offsetof(SlotTrailer, layer), 24u);
  EXPECT_EQ(offsetof(SlotTrailer, shard), 28u);
  EXPECT_EQ(offsetof(SlotTrailer, rank), 32u);
  EXPECT_EQ(offsetof(SlotTrailer, micro_step), 36u);
  EXPECT_EQ(offsetof(SlotTrailer, slot_sequence), 40u);
  EXPECT_EQ(offsetof(SlotTrailer, payload_bytes), 44u);
  EXPECT_EQ(offsetof(SlotTrailer, payload_crc32c), 48u);
  EXPECT_EQ(offsetof(SlotTrailer, dtype), 52u);
  EXPECT_EQ(offsetof(SlotTrailer, reserved0), 53u);
  EXPECT_EQ(offsetof(SlotTrailer, reserved1), 56u);
  EXPECT_EQ(offsetof(SlotTrailer, trailer_crc32c), 60u);
}

TEST(WireLayoutTest, SlotTrailerBytes) {
  SlotTrailer trailer;
  std::memset(&trailer, 0xff, sizeof trailer);
  trailer.flags = kSlotClose | kSlotPayloadCrc;
  trailer.epoch = 0x0102030405060708;
  trailer.step = 3;
  trailer.layer = 0x11121314;
  trailer.shard = 5;
  trailer.rank = 6;
  trailer.micro_step = 7;
  trailer.slot_sequence = 8;
  trailer.payload_bytes = 0x40;
  trailer.payload_crc32c = 0xdeadbeef;
  trailer.dtype = static_cast<uint8_t>(DType::kFloat16);
  SealSlotTrailer(&trailer);
  EXPECT_EQ(Hex(trailer).substr(0, 120),
            "4c57534c"
            "0100"
            "0500"
            "0807060504030201"
            "0300000000000000"
            "14131211"
            "05000000"
            "06000000"
            "07000000"
            "08000000"
            "40000000"
            "efbeadde"
            "03"
            "000000"
            "00000000");
}

TEST(WireLayoutTest, BoardOffsets) {
  EXPECT_EQ(offsetof(BoardHeader, magic), 0u);
  EXPECT_EQ(offsetof(BoardHeader, fault_code), 4u);
  EXPECT_EQ(offsetof(BoardHeader, epoch), 8u);
  EXPECT_EQ(offsetof(BoardHeader, current_step), 16u);
  EXPECT_EQ(offsetof(BoardHeader, beat), 24u);
  EXPECT_EQ(offsetof(BoardHeader, fault_text), 64u);
  EXPECT_EQ(BoardReleasedOffset(), 320u);
  EXPECT_EQ(BoardPublishedOffset(0), 320u);
  EXPECT_EQ(BoardPublishedOffset(1), 384u);
  EXPECT_EQ(BoardPublishedOffset(16), 384u);
  EXPECT_EQ(BoardPublishedOffset(17), 448u);
  EXPECT_EQ(BoardBytes(16, 0), 4096u);
  EXPECT_EQ(BoardBytes(16, (4096 - 384) / 8), 4096u);
  EXPECT_EQ(BoardBytes(16, (4096 - 384) / 8 + 1), 8192u);
  EXPECT_EQ(BoardPlacesOffset(16, 10), 384u + 80);
  EXPECT_EQ(BoardBytes(16, (4096 - 384) / 24, true), 4096u);
  EXPECT_EQ(BoardBytes(16, (4096 - 384) / 24 + 1, true), 8192u);
}

TEST(WireLayoutTest, PlacesAndWishesAreTakenApartAsTheyWerePutTogether) {
  for (const uint64_t residence : {uint64_t{1}, uint64_t{0x123456789}, (uint64_t{1} << 40) - 1}) {
    for (const uint32_t slot : {0u, 77u, kWindowSlotsMax - 1}) {
      const WindowPlace place = WindowPlace::Of(WindowPlace{residence, slot}.word());
      EXPECT_EQ(place.residence, residence);
      EXPECT_EQ(place.slot, slot);
    }
  }
  EXPECT_EQ(WindowPlace::Of(0).residence, 0u) << "no place";
  for (const uint32_t shard : {0u, 5u, (1u << 30) - 1}) {
    for (const uint64_t version : {6, 7}) {
      const uint32_t wish = WantOf(shard, version);
      EXPECT_NE(wish & kWantBit, 0u);
      EXPECT_EQ(WantedShard(wish), shard);
      EXPECT_EQ(WantedParity(wish), version % 2);
    }
  }
}

TEST(WireLayoutTest, PayloadAndTrailerAreOneRunAtTheEndOfTheSlot) {
  for (const uint64_t payload : {0, 1, 63, 64, 65, 4031, 4032, 4033, 1 << 20}) {
    const uint64_t slot = SlotBytes(payload);
    EXPECT_EQ(slot % 4096, 0u) << payload;
    EXPECT_LT(slot, payload + 2 * 64 + 4096) << payload;
    const uint64_t start = SlotPayloadOffset(slot, payload);
    EXPECT_EQ(start % 64, 0u) << payload;
    EXPECT_LE(start + payload, slot - kSlotTrailerBytes) << payload;
    EXPECT_LT(slot - kSlotTrailerBytes - (start + payload), 64u) << payload;
  }
}

}  // namespace
}  // namespace luwu
