#include "server/store/served_weights.h"

#include <cstring>

#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/wire/shard_header.h"
#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

class Served : public testing::Test {
 protected:
  Served()
      : spec_(fakes::SmallSpec(1, {fakes::Layer("a", 100)})),
        map_(spec_, Placement(fakes::NodeList(1), spec_), 0),
        weights_(*ServedWeights::Create(spec_, map_, 8)) {}

  Status Check(uint32_t index, uint64_t version) {
    ShardHeader header;
    std::memcpy(&header,
                weights_->region()->span().data() + ShardMap::header_offset(index, version),
                sizeof(header));
    const LocalShard& shard = map_.shards()[index];
    const Status status =
        CheckShardHeader(header, {8, version, 0, shard.shard, DType::kFloat32, shard.elements * 4});
    if (!status.ok()) return status;
    const ConstByteSpan payload(weights_->Payload(index, version), shard.elements * 4);
    EXPECT_EQ(header.payload_crc32c, Crc32c(payload));
    return status;
  }
  uint32_t Fill(uint32_t index, uint64_t version, int byte) {
    std::memset(weights_->Payload(index, version), byte, weights_->PayloadBytes(index));
    return Crc32c({weights_->Payload(index, version), weights_->PayloadBytes(index)});
  }

  JobSpec spec_;
  ShardMap map_;
  std::unique_ptr<ServedWeights> weights_;
};

TEST_F(Served, TwoVersionsLieSideBySideAndTheThirdTakesTheFirstOnesPlace) {
  for (uint64_t version = 0; version < 3; ++version) {
    ASSERT_EQ(*weights_->Begin(1, version), weights_->Payload(1, version));
    if (version >= 2) {
      EXPECT_EQ(CodeOf(Check(1, version - 2)), ErrorCode::kStaleVersion);
    }
    weights_->Publish(1, version, Fill(1, version, int(version) + 1));
    EXPECT_TRUE(Check(1, version).ok());
    if (version > 0) {
      EXPECT_TRUE(Check(1, version - 1).ok());
    }
  }
  EXPECT_EQ(*weights_->Payload(1, 1), std::byte{2});
  EXPECT_EQ(CodeOf(Check(0, 0)), ErrorCode::kCorrupt) << "the other shard was never published";
}

TEST_F(Served, CarryingOverCopiesTheBytes) {
  weights_->Publish(0, 6, Fill(0, 6, 0x5a));
  const uint32_t crc = weights_->CopyToNext(0, 6);
  EXPECT_FALSE(Check(0, 7).ok()) << "not before it is published";
  weights_->Publish(0, 7, crc);
  EXPECT_TRUE(Check(0, 7).ok());
  EXPECT_TRUE(Check(0, 6).ok());
  EXPECT_EQ(*weights_->Payload(0, 7), std::byte{0x5a});
}

TEST_F(Served, NoPeerCanMapItWritable) {
  EXPECT_EQ(weights_->region()->access(), transport::Access::kRemoteRead);
}

}  // namespace
}  // namespace luwu
