#include "common/wire/slot_trailer.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/crc32c.h"

namespace luwu {
namespace {

SlotTrailer WithPayload() {
  SlotTrailer trailer = {};
  trailer.flags = kSlotPayloadCrc;
  trailer.epoch = 77;
  trailer.step = 5;
  trailer.layer = 3;
  trailer.shard = 2;
  trailer.rank = 1;
  trailer.micro_step = 4;
  trailer.slot_sequence = 9;
  trailer.payload_bytes = 4096;
  trailer.payload_crc32c = 0x12345678;
  trailer.dtype = static_cast<uint8_t>(DType::kBFloat16);
  SealSlotTrailer(&trailer);
  return trailer;
}

SlotTrailer WithoutPayload() {
  SlotTrailer trailer = {};
  trailer.flags = kSlotClose | kSlotNoPayload;
  trailer.epoch = 77;
  trailer.step = 5;
  trailer.layer = 3;
  trailer.shard = kAllShards;
  trailer.rank = 1;
  SealSlotTrailer(&trailer);
  return trailer;
}

// As a hostile but careful peer would: the CRC is right whatever the fields say.
void Sign(SlotTrailer* trailer) {
  trailer->trailer_crc32c =
      Crc32c(std::as_bytes(std::span(trailer, 1)).first(sizeof *trailer - sizeof(uint32_t)));
}

TEST(SlotTrailerTest, AcceptsEveryLegalShape) {
  EXPECT_TRUE(CheckSlotTrailer(WithPayload()).ok());
  EXPECT_TRUE(CheckSlotTrailer(WithoutPayload()).ok());
  SlotTrailer trailer = WithPayload();
  trailer.flags = kSlotClose;
  trailer.payload_crc32c = 0;
  trailer.micro_step = kMicroStepMax;
  SealSlotTrailer(&trailer);
  EXPECT_TRUE(CheckSlotTrailer(trailer).ok());
  trailer = WithoutPayload();
  trailer.shard = 0;
  SealSlotTrailer(&trailer);
  EXPECT_TRUE(CheckSlotTrailer(trailer).ok());
}

TEST(SlotTrailerTest, AnyFlippedBitIsCorrupt) {
  for (const SlotTrailer& original : {WithPayload(), WithoutPayload()}) {
    for (size_t bit = 0; bit < 8 * sizeof(SlotTrailer); ++bit) {
      SlotTrailer trailer = original;
      const ByteSpan bytes = std::as_writable_bytes(std::span(&trailer, 1));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_EQ(CodeOf(CheckSlotTrailer(trailer)), ErrorCode::kCorrupt) << bit;
    }
  }
}

TEST(SlotTrailerTest, RandomBytesAreCorrupt) {
  std::mt19937 random(3);
  for (int i = 0; i < 10000; ++i) {
    SlotTrailer trailer;
    for (std::byte& byte : std::as_writable_bytes(std::span(&trailer, 1))) {
      byte = static_cast<std::byte>(random());
    }
    if (i % 2 == 0) trailer.magic = kSlotTrailerMagic;
    EXPECT_EQ(CodeOf(CheckSlotTrailer(trailer)), ErrorCode::kCorrupt) << i;
  }
  EXPECT_EQ(CodeOf(CheckSlotTrailer(SlotTrailer{})), ErrorCode::kCorrupt);
}

struct alignas(8) Place {
  std::byte bytes[kSlotTrailerBytes] = {};
};

TEST(SlotTrailerTest, LoadsWhatWasStored) {
  Place place;
  const SlotTrailer stored = WithPayload();
  StoreSlotTrailer(stored, place.bytes);
  SlotTrailer loaded = {};
  ASSERT_TRUE(LoadSlotTrailer(place.bytes, &loaded));
  EXPECT_EQ(std::memcmp(&loaded, &stored, sizeof stored), 0);
}

TEST(SlotTrailerTest, TellsABusyTrailerFromADamagedOne) {
  Place place;
  SlotTrailer trailer = WithPayload();
  trailer.magic = kSlotTrailerBusy;
  std::memcpy(place.bytes, &trailer, sizeof trailer);
  EXPECT_FALSE(LoadSlotTrailer(place.bytes, &trailer));
  trailer.magic = kSlotTrailerMagic;
  trailer.step ^= 1;
  std::memcpy(place.bytes, &trailer, sizeof trailer);
  ASSERT_TRUE(LoadSlotTrailer(place.bytes, &trailer));
  EXPECT_EQ(CodeOf(CheckSlotTrailer(trailer)), ErrorCode::kCorrupt);
}

TEST(SlotTrailerTest, AReaderNeverTakesAReplacementForDamage) {
  constexpr uint64_t kRounds = 3000;
  Place place;
  std::barrier turn(2);
  const auto trailer_of = [](uint64_t round) {
    SlotTrailer trailer = WithPayload();
    trailer.step = round;
    trailer.slot_sequence = static_cast<uint32_t>(round);
    SealSlotTrailer(&trailer);
    return trailer;
  };
  StoreSlotTrailer(trailer_of(0), place.bytes);
  std::thread writer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const SlotTrailer trailer = trailer_of(round);
      turn.arrive_and_wait();
      StoreSlotTrailer(trailer, place.bytes);
      turn.arrive_and_wait();
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    turn.arrive_and_wait();
    SlotTrailer loaded = {};
    const bool whole = LoadSlotTrailer(place.bytes, &loaded);
    turn.arrive_and_wait();
    if (!whole) continue;
    EXPECT_TRUE(CheckSlotTrailer(loaded).ok()) << round;
    EXPECT_TRUE(loaded.step == round || loaded.step == round - 1) << round;
  }
  writer.join();
}

TEST(SlotTrailerTest, RefusesIllegalShapesThatAreRightlySigned) {
  struct Case {
    const char* wanted;
    bool payload;
    std::function<void(SlotTrailer&)> change;
  };
  const Case cases[] = {
      {"layout version 2", true, [](SlotTrailer& t) { t.version = 2; }},
      {"unknown flags", true, [](SlotTrailer& t) { t.flags |= 8; }},
      {"unknown flags", false, [](SlotTrailer& t) { t.flags |= 0x8000; }},
      {"reserved", true, [](SlotTrailer& t) { t.reserved0[2] = 1; }},
      {"reserved", true, [](SlotTrailer& t) { t.reserved1 = 1; }},
      {"micro-step 1048577", true, [](SlotTrailer& t) { t.micro_step = kMicroStepMax + 1; }},
      {"CRC without its flag", true, [](SlotTrailer& t) { t.flags = 0; }},
      {"empty payload", true, [](SlotTrailer& t) { t.payload_bytes = 0; }},
      {"for all shards", true, [](SlotTrailer& t) { t.shard = kAllShards; }},
      {"neither a payload nor a close", false, [](SlotTrailer& t) { t.flags = kSlotNoPayload; }},
      {"CRC of no payload", false, [](SlotTrailer& t) { t.flags |= kSlotPayloadCrc; }},
      {"CRC without its flag", false, [](SlotTrailer& t) { t.payload_crc32c = 1; }},
      {"payload bytes without", false, [](SlotTrailer& t) { t.payload_bytes = 64; }},
  };
  for (const Case& c : cases) {
    SlotTrailer trailer = c.payload ? WithPayload() : WithoutPayload();
    c.change(trailer);
    Sign(&trailer);
    const Status status = CheckSlotTrailer(trailer);
    EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument) << c.wanted;
    EXPECT_NE(MessageOf(status).find(c.wanted), std::string::npos) << MessageOf(status);
    EXPECT_NE(MessageOf(status).find("rank 1"), std::string::npos) << MessageOf(status);
  }
}

}  // namespace
}  // namespace luwu
