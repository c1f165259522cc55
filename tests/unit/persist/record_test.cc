#include "server/persist/record.h"

#include <string>

#include <gtest/gtest.h>

namespace luwu::persist {
namespace {

const StoredGeneration kStored{
    3, 2, {.step = 9, .applied = 8, .place = 1ull << 63 | 5, .bytes = 70000, .crc32c = 0xdeadbeef}};

TEST(Record, GivesBackEveryField) {
  uint32_t job = 0;
  const auto generation =
      DecodeGeneration(GenerationKey(7, kStored), EncodeGeneration(7, kStored), &job);
  ASSERT_TRUE(generation.ok()) << generation.status();
  EXPECT_EQ(*generation, kStored);
  EXPECT_EQ(job, 7u);
  EXPECT_EQ(EncodeGeneration(7, kStored).size(), kGenerationRecordBytes);

  const StoredPoint point{
      4,
      {.step = 5, .epoch = 6, .loss_scale = 0.25f, .finite_steps = 7, .skipped_steps = 1ull << 40}};
  const auto decoded = DecodePoint(PointKey(1, point), EncodePoint(1, point), &job);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->branch, 4u);
  EXPECT_EQ(decoded->point, point.point);

  const StoredCheckpoint checkpoint{2, {"a name with \xff", point.point, -5}};
  const auto kept = DecodeCheckpoint(CheckpointKey(1, checkpoint.checkpoint.name),
                                     EncodeCheckpoint(1, checkpoint), &job);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->checkpoint, checkpoint.checkpoint);

  const StoredJob stored{9, {"job", 3, std::string("\0spec", 5), 77}, 1234, 6};
  const auto found = DecodeJob(JobKey(9), EncodeJob(stored));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->record, stored.record);
  EXPECT_EQ(found->reserve_bytes, 1234u);
  EXPECT_EQ(found->branch, 6u);
  StoredJob restoring = stored;
  restoring.record.restoring = "best";
  EXPECT_EQ(DecodeJob(JobKey(9), EncodeJob(restoring))->record, restoring.record);

  const auto branch = DecodeBranch(BranchKey(2, 5), EncodeBranch(2, {5, 4, 88}), &job);
  ASSERT_TRUE(branch.ok());
  EXPECT_EQ(branch->parent, 4u);
  EXPECT_EQ(branch->fork_step, 88u);
  EXPECT_EQ(*DecodeCounter(CounterKey(), EncodeCounter(12)), 12u);
}

TEST(Record, EveryFlippedBitOfKeyOrValueIsFound) {
  const std::string key = GenerationKey(7, kStored);
  const std::string value = EncodeGeneration(7, kStored);
  uint32_t job = 0;
  for (size_t bit = 0; bit < (key.size() + value.size()) * 8; ++bit) {
    std::string bad_key = key;
    std::string bad_value = value;
    std::string& bad = bit / 8 < key.size() ? bad_key : bad_value;
    const size_t at = bit / 8 < key.size() ? bit / 8 : bit / 8 - key.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << bit % 8));
    EXPECT_EQ(CodeOf(DecodeGeneration(bad_key, bad_value, &job).status()), ErrorCode::kCorrupt)
        << "bit " << bit;
  }
}

TEST(Record, EveryTruncationIsFound) {
  const StoredJob stored{9, {"job", 3, "spec", 77, "best"}, 1234, 6};
  const std::string value = EncodeJob(stored);
  for (size_t bytes = 0; bytes < value.size(); ++bytes) {
    EXPECT_EQ(CodeOf(DecodeJob(JobKey(9), value.substr(0, bytes)).status()), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(CodeOf(DecodeJob("J", value).status()), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace luwu::persist
