// What a job makes of the bytes in the slots: the order of checks, faults, repeats.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::FakeWorker;
using fakes::JobWorld;
using fakes::Push;

class JobSlots : public testing::Test {
 protected:
  JobSlots()
      : world_(fakes::SmallSpec(2, {fakes::Layer("a", 100), fakes::Layer("ice", 64, false)})),
        gradient_(100, 0.5f) {
    world_.LoadAll([](uint32_t, uint64_t) { return 1.0f; });
    worker_ = world_.Join(0);
    EXPECT_TRUE(worker_->Begin(0, {fakes::AdamHyper()}).ok());
  }

  Push Gradient(uint32_t shard = 0, uint32_t micro_step = 0, bool close = true) {
    return {0, 0, shard, micro_step, close, false, &gradient_};
  }
  // Sends one slot whose trailer `mangle` has changed (and signed again).
  template <typename Mangle>
  void SendMangled(const Mangle& mangle) {
    worker_->Write(Gradient(), 0);
    SlotTrailer trailer;
    const ByteSpan slot = worker_->SlotBytes(0);
    std::memcpy(&trailer, slot.data() + slot.size() - sizeof(trailer), sizeof(trailer));
    mangle(&trailer);
    SealSlotTrailer(&trailer);
    worker_->WriteTrailer(trailer, 0);
    worker_->MarkUsed(0);
    worker_->Ring(0);
  }
  void ExpectFault(ErrorCode code, const std::string& text) {
    EXPECT_EQ(worker_->board().fault(), code);
    EXPECT_NE(worker_->board().fault_text().find(text), std::string::npos)
        << worker_->board().fault_text();
    const Status status = worker_->Begin(0, {fakes::AdamHyper()});
    EXPECT_EQ(CodeOf(status), code) << "later calls answer the fault";
    EXPECT_EQ(world_.job().Snapshot().parked_slots, 0u);
    EXPECT_EQ(world_.job().Snapshot().rejected_slots, 1u);
  }

  JobWorld world_;
  std::vector<float> gradient_;
  std::unique_ptr<FakeWorker> worker_;
};

TEST_F(JobSlots, ADoorbellBeyondTheInboxIsAFault) {
  worker_->Ring(4);
  ExpectFault(ErrorCode::kInvalidArgument, "slot 4");
}

TEST_F(JobSlots, ADamagedTrailerIsAFault) {
  worker_->Write(Gradient(), 0);
  const ByteSpan slot = worker_->SlotBytes(0);
  slot[slot.size() - 20] ^= std::byte{1};
  worker_->Ring(0);
  ExpectFault(ErrorCode::kCorrupt, "CRC");
}

TEST_F(JobSlots, AnotherEpochIsAFault) {
  SendMangled([](SlotTrailer* t) { t->epoch = 77; });
  ExpectFault(ErrorCode::kStaleEpoch, "0x4d");
}

TEST_F(JobSlots, AnotherRankIsAFault) {
  SendMangled([](SlotTrailer* t) { t->rank = 1; });
  ExpectFault(ErrorCode::kPermission, "rank 1");
}

TEST_F(JobSlots, ASlotUsedAheadOfItsCreditIsAFault) {
  SendMangled([](SlotTrailer* t) { t->slot_sequence = 1; });
  ExpectFault(ErrorCode::kInvalidArgument, "slot 0");
}

TEST_F(JobSlots, AnUnknownLayerIsAFault) {
  SendMangled([](SlotTrailer* t) { t->layer = 2; });
  ExpectFault(ErrorCode::kInvalidArgument, "layer 2");
}

TEST_F(JobSlots, AnUnknownShardIsAFault) {
  SendMangled([](SlotTrailer* t) { t->shard = 2; });
  ExpectFault(ErrorCode::kInvalidArgument, "shard 2");
}

TEST_F(JobSlots, AFrozenLayerIsAFault) {
  SendMangled([](SlotTrailer* t) { t->layer = 1; });
  ExpectFault(ErrorCode::kInvalidArgument, "'ice', which is frozen");
}

TEST_F(JobSlots, AnotherElementTypeIsAFault) {
  SendMangled([](SlotTrailer* t) { t->dtype = static_cast<uint8_t>(DType::kBFloat16); });
  ExpectFault(ErrorCode::kInvalidArgument, "float32");
}

TEST_F(JobSlots, AnotherLengthIsAFault) {
  SendMangled([](SlotTrailer* t) { t->payload_bytes -= 4; });
  ExpectFault(ErrorCode::kInvalidArgument, "252 bytes; the shard has 256");
}

TEST_F(JobSlots, ALengthBeyondTheSlotIsAFaultAndNotRead) {
  SendMangled([](SlotTrailer* t) {
    t->payload_bytes = 0xfffffff0u;
    t->flags |= kSlotPayloadCrc;
  });
  ExpectFault(ErrorCode::kInvalidArgument, "4294967280 bytes");
}

TEST_F(JobSlots, AWrongPayloadCrcIsAFault) {
  SendMangled([](SlotTrailer* t) {
    t->flags |= kSlotPayloadCrc;
    t->payload_crc32c = 1;
  });
  ExpectFault(ErrorCode::kCorrupt, "0x00000001");
}

TEST_F(JobSlots, AFutureStepIsAFault) {
  SendMangled([](SlotTrailer* t) { t->step = 1; });
  ExpectFault(ErrorCode::kStepMismatch, "step 1: the job is at step 0");
}

TEST_F(JobSlots, AStepThatWasNotBegunIsAFault) {
  worker_ = world_.Join(1);
  SendMangled([](SlotTrailer*) {});
  EXPECT_EQ(worker_->board().fault(), ErrorCode::kStepMismatch);
  EXPECT_NE(worker_->board().fault_text().find("has begun none"), std::string::npos);
}

TEST_F(JobSlots, APushAfterTheCloseIsAFault) {
  worker_->Send(Gradient());
  worker_->Send(Gradient(0, 1, false));
  EXPECT_EQ(worker_->board().fault(), ErrorCode::kLayerClosed);
  EXPECT_NE(worker_->board().fault_text().find("layer 0 'a' shard 0"), std::string::npos)
      << worker_->board().fault_text();
}

TEST_F(JobSlots, AHeldSlotThatRingsAgainIsARepeat) {
  worker_->Send(Gradient(), 1);
  for (int i = 0; i < 3; ++i) worker_->Ring(1);
  EXPECT_EQ(worker_->board().fault(), ErrorCode::kOk);
  EXPECT_EQ(world_.job().Snapshot().parked_slots, 1u);
}

TEST_F(JobSlots, ALateDoorbellOfASlotThatWasGivenBackIsARepeat) {
  worker_->Send({0, 0, 0, 0, true, false, nullptr}, 2);  // a close holds no slot
  EXPECT_EQ(worker_->board().released(2), 1u);
  worker_->Ring(2);
  EXPECT_EQ(worker_->board().released(2), 1u);
  EXPECT_EQ(worker_->board().fault(), ErrorCode::kOk);
}

// The worker has begun to seal the next use of the slot when the doorbell of the former one rings.
TEST_F(JobSlots, ALateDoorbellMeetsATrailerThatIsBeingReplaced) {
  worker_->Send({0, 0, 0, 0, true, false, nullptr}, 2);
  worker_->Write({0, 0, 1, 0, true, false, nullptr}, 2);
  const ByteSpan place = worker_->SlotBytes(2).last(kSlotTrailerBytes);
  SlotTrailer whole;
  ASSERT_TRUE(LoadSlotTrailer(place, &whole));
  SlotTrailer half = whole;
  half.magic = kSlotTrailerBusy;
  half.slot_sequence = 0;
  worker_->WriteTrailer(half, 2);
  worker_->Ring(2);
  EXPECT_EQ(worker_->board().fault(), ErrorCode::kOk) << worker_->board().fault_text();
  EXPECT_EQ(worker_->board().released(2), 1u);
  worker_->MarkUsed(2);
  StoreSlotTrailer(whole, place);
  worker_->Ring(2);
  EXPECT_EQ(worker_->board().released(2), 2u) << "its own doorbell counts";
  EXPECT_EQ(world_.job().Snapshot().rejected_slots, 0u);
}

TEST_F(JobSlots, TheSameGradientInAnotherSlotCountsOnce) {
  worker_->Send(Gradient(), 0);
  worker_->Send(Gradient(), 1);
  EXPECT_EQ(worker_->board().released(1), 1u);
  EXPECT_EQ(worker_->board().released(0), 0u);
  EXPECT_EQ(world_.job().Snapshot().duplicates, 1u);
}

TEST_F(JobSlots, AFaultyWorkerIsNotHeardAnyMore) {
  worker_->Ring(9);
  worker_->Send(Gradient(), 0);
  EXPECT_EQ(world_.job().Snapshot().parked_slots, 0u);
  EXPECT_EQ(worker_->board().released(0), 0u);
}

// Whatever bytes stand in a trailer, signed or not: no crash, and nothing counts that is not
// exactly a gradient of this worker for this step.
TEST_F(JobSlots, RandomTrailersNeverCrashAndNeverCount) {
  std::mt19937 random(11);
  uint32_t faults = 0;
  for (uint64_t round = 1; round <= 3000; ++round) {
    worker_->Write(Gradient(0, 0, false), 0);
    SlotTrailer trailer;
    const ByteSpan slot = worker_->SlotBytes(0);
    std::memcpy(&trailer, slot.data() + slot.size() - sizeof(trailer), sizeof(trailer));
    const SlotTrailer good = trailer;
    auto* bytes = reinterpret_cast<unsigned char*>(&trailer);
    for (uint32_t i = 0; i < 1 + random() % 3; ++i) {
      bytes[random() % 60] ^= static_cast<unsigned char>(1u << random() % 8);
    }
    if (random() % 4 != 0) SealSlotTrailer(&trailer);
    worker_->WriteTrailer(trailer, 0);
    worker_->Ring(0);
    if (worker_->board().fault() == ErrorCode::kOk) {
      // The changes undid each other, are a legal message, or a repeat: start over all the same.
      const bool unchanged = std::memcmp(&trailer, &good, sizeof(good)) == 0;
      const bool legal = trailer.epoch == good.epoch && trailer.rank == 0 && trailer.layer == 0 &&
                         (trailer.step == 0);
      ASSERT_TRUE(unchanged || legal);
    } else {
      ++faults;
      ASSERT_EQ(world_.job().Snapshot().parked_slots, 0u);
    }
    worker_ = world_.Join(0, round);
    ASSERT_TRUE(worker_->open_status().ok());
    ASSERT_TRUE(worker_->Begin(0, {fakes::AdamHyper()}).ok());
  }
  EXPECT_GT(faults, 2000u);
  EXPECT_EQ(world_.job().current_step(), 0u);
}

TEST_F(JobSlots, RandomBytesNeverCrash) {
  std::mt19937 random(12);
  for (int round = 0; round < 2000; ++round) {
    const ByteSpan slot = worker_->SlotBytes(round % 4);
    for (std::byte& byte : slot.last(kSlotTrailerBytes)) byte = std::byte(random() & 0xff);
    worker_->Ring(round % 4);
  }
  EXPECT_EQ(worker_->board().fault(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace luwu
