// The file that says how far the catalogue must reach.
#include "server/persist/promises.h"

#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "tests/fakes/fake_disk.h"

namespace luwu::persist {
namespace {

const std::string kFolder = "/data";

std::string Block(const Promise& promise) {
  std::string block = EncodePromise(promise);
  block.resize(4096, '\0');
  return block;
}

TEST(Promise, ComesBackFromABlockAndFitsIntoASector) {
  const Promise promise{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, std::string(36, 'b'),
                        "checkpoint 'x' of job number 7"};
  EXPECT_EQ(DecodePromise(Block(promise)), promise);
  Promise wordy = promise;
  wordy.what = std::string(1000, 'w') + "\n";
  EXPECT_LE(EncodePromise(wordy).size(), 512u);
  EXPECT_EQ(DecodePromise(Block(wordy))->what, std::string(200, 'w'));
}

TEST(Promise, IsNotReadFromADamagedBlock) {
  const std::string whole = EncodePromise({3, 2, 3, "boot", "point 1 of job number 1"});
  const std::string block = Block({3, 2, 3, "boot", "point 1 of job number 1"});
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = block;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(DecodePromise(flipped).has_value()) << bit;
  }
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_FALSE(DecodePromise(whole.substr(0, cut)).has_value()) << cut;
}

class PromisesFile : public testing::Test {
 protected:
  StatusOr<std::unique_ptr<Promises>> Open(const std::string& boot, bool create = false) {
    return Promises::Open(kFolder, disk_, boot, create);
  }
  const std::shared_ptr<fakes::FakeDisk> disk_ = std::make_shared<fakes::FakeDisk>();
};

TEST_F(PromisesFile, WhatIsWrittenCountsForOneBootAndWhatIsSyncedForAll) {
  auto promises = Open("one", /*create=*/true);
  ASSERT_TRUE(promises.ok()) << promises.status();
  EXPECT_EQ((*promises)->required(), 0u);
  ASSERT_TRUE((*promises)->Record(5, true, "a").ok());
  ASSERT_TRUE((*promises)->Record(6, false, "b").ok());
  ASSERT_TRUE((*promises)->Record(7, false, "point 9").ok());
  EXPECT_EQ((*Open("one"))->required(), 7u);
  EXPECT_EQ((*Open("two"))->required(), 5u);
  EXPECT_EQ((*Open(""))->required(), 5u) << "a kernel that does not say which it is";
  const Status lost = (*Open("one"))->Check(6, "/data/catalogue");
  EXPECT_EQ(CodeOf(lost), ErrorCode::kCorrupt);
  EXPECT_NE(MessageOf(lost).find("point 9"), std::string::npos) << lost;
  EXPECT_TRUE((*Open("one"))->Check(8, "/data/catalogue").ok());
}

TEST_F(PromisesFile, LossOfPowerNeverTakesWhatWasSyncedNorInventsMore) {
  std::mt19937_64 random(11);
  ASSERT_TRUE(Open("boot 0", /*create=*/true).ok());
  uint64_t change = 0;
  for (int boot = 1; boot < 300; ++boot) {
    auto promises = Open(fmt::format("boot {}", boot));
    ASSERT_TRUE(promises.ok()) << promises.status();
    uint64_t synced = (*promises)->required();
    change = std::max(change, synced);
    for (uint64_t i = random() % 6; i > 0; --i) {
      const bool sync = random() % 2 == 0;
      ASSERT_TRUE((*promises)->Record(++change, sync, "x").ok());
      if (sync) synced = change;
    }
    promises->reset();
    disk_->LosePower(&random);
    ASSERT_EQ((*Open(fmt::format("boot {}", boot + 1)))->required(), synced) << "boot " << boot;
  }
}

TEST_F(PromisesFile, WithoutAWholeBlockIsDamaged) {
  EXPECT_EQ(CodeOf(Open("one").status()), ErrorCode::kCorrupt) << "never made";
  ASSERT_TRUE(Open("one", /*create=*/true).ok());
  ASSERT_TRUE((*Open("one"))->Record(3, true, "x").ok());
  ASSERT_TRUE((*Open("one"))->Record(4, true, "y").ok());
  disk_->Flip(kFolder + "/PROMISED", 3, std::byte{1});
  EXPECT_TRUE(Open("one").ok()) << "one is left";
  disk_->Flip(kFolder + "/PROMISED", 4096 + 3, std::byte{1});
  EXPECT_EQ(CodeOf(Open("one").status()), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace luwu::persist
