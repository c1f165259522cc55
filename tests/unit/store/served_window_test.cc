// A window on served copies, over a storage that answers late.
#include "server/store/served_window.h"

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/wire/shard_header.h"
#include "common/wire/window.h"
#include "tests/fakes/job_world.h"
#include "tests/fakes/memory_storage.h"

namespace luwu {
namespace {

constexpr uint64_t kEpoch = 8;
constexpr uint32_t kSlots = 4;
constexpr uint32_t kShards = 12;

class Listening {
 public:
  void NoteFailure(const Status& why) {
    MutexLock lock(mutex_);
    failure_ = why;
    changed_.NotifyAll();
  }
  void Note() {
    MutexLock lock(mutex_);
    ++events_;
    changed_.NotifyAll();
  }
  // Looked at after each event; false after 30 s.
  bool WaitFor(const std::function<bool()>& condition) {
    const TimePoint deadline = DeadlineAfter(30000);
    while (true) {
      uint64_t seen = 0;
      {
        MutexLock lock(mutex_);
        seen = events_;
      }
      if (condition()) return true;
      MutexLock lock(mutex_);
      while (events_ == seen) {
        if (!changed_.WaitUntil(mutex_, deadline) && events_ == seen) return false;
      }
    }
  }
  Status AwaitFailure() {
    const TimePoint deadline = DeadlineAfter(30000);
    MutexLock lock(mutex_);
    while (failure_.ok() && changed_.WaitUntil(mutex_, deadline)) {
    }
    return failure_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t events_ LUWU_GUARDED_BY(mutex_) = 0;
  Status failure_ LUWU_GUARDED_BY(mutex_);
};

class Window : public testing::Test {
 protected:
  Window()
      : spec_(fakes::SmallSpec(1, {fakes::Layer("a", kShards * 64)})),
        map_(spec_, Placement(fakes::NodeList(1), spec_), 0, kSlots),
        storage_(std::make_shared<fakes::MemoryStorage>()),
        use_(std::make_shared<StorageUse>(storage_)),
        window_(*ServedWindow::Create(spec_, map_, kEpoch, use_)) {
    window_->SetHooks({.moved = [this] { listener_.Note(); },
                       .failed = [this](const Status& why) { listener_.NoteFailure(why); }});
  }
  ~Window() override {
    window_->Stop();
    window_.reset();
    use_.reset();
    // The storage's thread may still let go of what it has called; it must not be the last.
    while (storage_.use_count() > 1) std::this_thread::yield();
  }

  static uint32_t CrcOf(std::byte value) {
    return Crc32c(std::vector<std::byte>(64 * sizeof(float), value));
  }
  // A version whose bytes are all `value`.
  void Write(uint32_t index, uint64_t version, std::byte value) {
    const StatusOr<std::byte*> data = window_->Begin(index, version);
    ASSERT_TRUE(data.ok()) << ToString(data.status());
    std::memset(*data, int(value), window_->PayloadBytes(index));
    window_->Finish(index, version);
    window_->Publish(index, version, CrcOf(value));
  }
  struct Found {
    std::vector<std::byte> payload;
    ShardHeader header = {};
  };
  // What lies at a place, as a reader in another process takes it.
  Found At(const WindowPlace& place) {
    const ByteSpan region = window_->region()->span();
    const ConstByteSpan payload =
        region.subspan(map_.window_payload_offset(place.slot), 64 * sizeof(float));
    Found found = {{payload.begin(), payload.end()}, {}};
    std::atomic_signal_fence(std::memory_order_acquire);
    std::memcpy(&found.header, region.data() + ShardMap::window_header_offset(place.slot),
                sizeof(found.header));
    return found;
  }
  Status Check(const Found& found, uint32_t index, uint64_t version, const WindowPlace& place) {
    return CheckShardHeader(found.header, {kEpoch, version, 0, index, DType::kFloat32,
                                           found.payload.size(), place.residence});
  }
  // Reads a version, bringing it into memory; nothing when it does not come.
  std::optional<std::vector<std::byte>> Read(uint32_t index, uint64_t version) {
    const CopyId id = {index, uint32_t(version % 2)};
    std::optional<std::vector<std::byte>> result;
    listener_.WaitFor([&] {
      if (!window_->Want(id)) return false;
      const WindowPlace place = WindowPlace::Of(window_->Place(id));
      const Found found = At(place);
      if (!Check(found, index, version, place).ok()) {
        listener_.Note();  // gone meanwhile; look again
        return false;
      }
      EXPECT_EQ(found.header.payload_crc32c, Crc32c(found.payload));
      result = found.payload;
      return true;
    });
    return result;
  }
  void ExpectBytes(uint32_t index, uint64_t version, std::byte value) {
    const auto payload = Read(index, version);
    ASSERT_TRUE(payload) << "shard " << index << " version " << version;
    EXPECT_EQ(*payload, std::vector<std::byte>(64 * sizeof(float), value))
        << "shard " << index << " version " << version;
  }

  JobSpec spec_;
  ShardMap map_;
  Listening listener_;
  std::shared_ptr<fakes::MemoryStorage> storage_;
  std::shared_ptr<StorageUse> use_;
  std::unique_ptr<ServedWindow> window_;
};

std::byte ValueOf(uint32_t index, uint64_t version) {
  return static_cast<std::byte>(1 + 7 * index + 31 * version);
}

TEST_F(Window, MoreCopiesThanSlotsAreAllReadableInAnyOrder) {
  for (uint64_t version = 0; version < 3; ++version) {
    for (uint32_t i = 0; i < kShards; ++i) Write(i, version, ValueOf(i, version));
  }
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 2, ValueOf(i, 2));
  for (uint32_t i = kShards; i-- > 0;) ExpectBytes(i, 1, ValueOf(i, 1));
  EXPECT_GT(window_->counters().loads, kShards);
}

TEST_F(Window, APlaceThatWasGivenAwayNamesAnotherResidence) {
  Write(0, 0, std::byte{1});
  const WindowPlace place = WindowPlace::Of(window_->Place({0, 0}));
  ASSERT_NE(place.residence, 0u);
  EXPECT_TRUE(Check(At(place), 0, 0, place).ok());
  for (uint32_t i = 1; i < kShards; ++i) Write(i, 0, std::byte{2});
  EXPECT_EQ(window_->Place({0, 0}), 0u);
  EXPECT_FALSE(Check(At(place), 0, 0, place).ok());
  ExpectBytes(0, 0, std::byte{1});  // elsewhere, or here again with another residence
  EXPECT_NE(WindowPlace::Of(window_->Place({0, 0})).residence, place.residence);
  EXPECT_FALSE(Check(At(place), 0, 0, place).ok());
}

TEST_F(Window, WhatIsNotPublishedIsNotThere) {
  const StatusOr<std::byte*> data = window_->Begin(3, 0);
  ASSERT_TRUE(data.ok());
  EXPECT_FALSE(window_->Want({3, 0}));
  EXPECT_EQ(window_->Place({3, 0}), 0u);
  window_->Abandon(3, 0);
  EXPECT_FALSE(window_->Want({3, 0}));
  EXPECT_EQ(window_->counters().wants, 0u);
}

TEST_F(Window, ACopyIsReadableWhileItIsBeingStored) {
  storage_->Hold(true);
  Write(0, 0, std::byte{9});
  ExpectBytes(0, 0, std::byte{9});
  EXPECT_EQ(window_->counters().loads, 0u);
  storage_->Hold(false);
}

TEST_F(Window, CarryingOverMovesNoBytes) {
  for (uint32_t i = 0; i < kShards; ++i) Write(i, 0, ValueOf(i, 0));
  const uint64_t stores = window_->counters().stores;
  for (uint32_t i = 0; i < kShards; ++i) {
    EXPECT_EQ(window_->CopyToNext(i, 0), CrcOf(ValueOf(i, 0)));
    window_->Publish(i, 1, CrcOf(ValueOf(i, 0)));
  }
  EXPECT_EQ(window_->counters().stores, stores);
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 1, ValueOf(i, 0));
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 0, ValueOf(i, 0));
  // The next version of one number leaves the other alone.
  for (uint32_t i = 0; i < kShards; ++i) Write(i, 2, ValueOf(i, 2));
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 1, ValueOf(i, 0));
}

// The older number of a carried copy can be asked for while the newer one is on its way to the
// disk.
TEST_F(Window, ACarriedCopyIsReadUnderBothNumbersWhileItIsBeingStored) {
  storage_->Hold(true);
  Write(0, 1, std::byte{5});
  EXPECT_EQ(window_->CopyToNext(0, 1), CrcOf(std::byte{5}));
  window_->Publish(0, 2, CrcOf(std::byte{5}));
  EXPECT_FALSE(window_->Want({0, 0}));
  storage_->Hold(false);
  ExpectBytes(0, 2, std::byte{5});
  ExpectBytes(0, 1, std::byte{5});
}

TEST_F(Window, WhoWritesComesBeforeWhoReads) {
  for (uint32_t i = 0; i < kShards; ++i) Write(i, 0, ValueOf(i, 0));
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 0, ValueOf(i, 0));
  storage_->Hold(true);
  std::thread writer([&] {
    for (uint32_t i = 0; i < kShards; ++i) Write(i, 1, ValueOf(i, 1));
  });
  for (uint32_t i = 0; i < kShards; ++i) window_->Want({i, 0});
  storage_->Hold(false);
  writer.join();
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 1, ValueOf(i, 1));
}

TEST_F(Window, CancelReleasesWhoeverWaits) {
  storage_->Hold(true);
  for (uint32_t i = 0; i < kSlots; ++i) Write(i, 0, std::byte{1});  // all slots being stored
  std::atomic<bool> waits = true;
  std::thread writer([&] {
    EXPECT_EQ(CodeOf(window_->Begin(kSlots, 0).status()), ErrorCode::kCancelled);
    waits = false;
  });
  EXPECT_TRUE(waits);
  window_->Cancel();
  writer.join();
  EXPECT_EQ(CodeOf(window_->Begin(kSlots, 0).status()), ErrorCode::kCancelled);
  storage_->Hold(false);
}

TEST_F(Window, AFailedReadIsToldAndNothingIsShown) {
  for (uint32_t i = 0; i < kShards; ++i) Write(i, 0, ValueOf(i, 0));
  storage_->FailReads(1);
  for (uint32_t i = 0; i < kShards; ++i) window_->Want({i, 0});
  const Status failure = listener_.AwaitFailure();
  EXPECT_NE(MessageOf(failure).find("cannot be read"), std::string::npos) << ToString(failure);
  EXPECT_FALSE(window_->Begin(0, 1).ok());
}

TEST_F(Window, NothingIsLeftOnDiskOfVersionsThatAreGone) {
  for (uint64_t version = 0; version < 10; ++version) {
    for (uint32_t i = 0; i < kShards; ++i) Write(i, version, ValueOf(i, version));
  }
  for (uint32_t i = 0; i < kShards; ++i) ExpectBytes(i, 9, ValueOf(i, 9));
  window_->Stop();
  EXPECT_EQ(storage_->payloads(), 2u * kShards);
  EXPECT_LE(storage_->payloads_max(), 2u * kShards);
}

// Readers that take what they find, against a writer, versions in lockstep: no reader ever takes a
// mixture for a copy.
TEST_F(Window, ReadersNeverTakeAMixtureForACopy) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "they read what is being overwritten, and find out afterwards";
#endif
  for (uint32_t i = 0; i < kShards; ++i) Write(i, 0, ValueOf(i, 0));
  std::atomic<bool> done = false;
  std::atomic<uint64_t> good = 0;
  std::vector<std::thread> readers;
  for (uint32_t seed = 0; seed < 2; ++seed) {
    readers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      while (!done) {
        const CopyId id = {uint32_t(random() % kShards), uint32_t(random() % 2)};
        window_->Want(id);
        const uint64_t word = window_->Place(id);
        if (word == 0) continue;
        const WindowPlace place = WindowPlace::Of(word);
        if (random() % 4 == 0) std::this_thread::yield();
        const Found found = At(place);
        if (found.header.version > 1000) continue;  // none
        if (!Check(found, id.index, found.header.version, place).ok()) continue;
        ASSERT_EQ(found.payload, std::vector<std::byte>(found.payload.size(),
                                                        ValueOf(id.index, found.header.version)));
        ++good;
      }
    });
  }
  for (uint64_t version = 1; version < 60; ++version) {
    for (uint32_t i = 0; i < kShards; ++i) Write(i, version, ValueOf(i, version));
  }
  while (good < 200) std::this_thread::yield();
  done = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace luwu
