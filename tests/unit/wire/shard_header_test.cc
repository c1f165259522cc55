#include "common/wire/shard_header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "common/base/bytes.h"

namespace luwu {
namespace {

ShardHeaderExpectation Expectation() {
  return {.epoch = 77,
          .version = 5,
          .layer = 3,
          .shard = 2,
          .dtype = DType::kBFloat16,
          .payload_bytes = 4096};
}

ShardHeader SealedHeader() {
  ShardHeader header = {};
  header.dtype = static_cast<uint8_t>(DType::kBFloat16);
  header.epoch = 77;
  header.version = 5;
  header.layer = 3;
  header.shard = 2;
  header.payload_bytes = 4096;
  header.payload_crc32c = 0x12345678;
  SealShardHeader(&header);
  return header;
}

TEST(ShardHeaderTest, AcceptsWhatWasSealed) {
  const Status status = CheckShardHeader(SealedHeader(), Expectation());
  EXPECT_TRUE(status.ok()) << ToString(status);
}

TEST(ShardHeaderTest, AnyFlippedBitIsCorrupt) {
  for (size_t bit = 0; bit < 8 * sizeof(ShardHeader); ++bit) {
    ShardHeader header = SealedHeader();
    const ByteSpan bytes = std::as_writable_bytes(std::span(&header, 1));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(CodeOf(CheckShardHeader(header, Expectation())), ErrorCode::kCorrupt) << bit;
  }
}

TEST(ShardHeaderTest, ZeroAndOnesAreCorrupt) {
  ShardHeader header = {};
  EXPECT_EQ(CodeOf(CheckShardHeader(header, Expectation())), ErrorCode::kCorrupt);
  std::memset(&header, 0xff, sizeof header);
  EXPECT_EQ(CodeOf(CheckShardHeader(header, Expectation())), ErrorCode::kCorrupt);
}

TEST(ShardHeaderTest, ARightlySignedHeaderOfSomethingElseIsRefused) {
  struct Case {
    const char* wanted;
    ErrorCode code;
    std::function<void(ShardHeader&)> change;
  };
  const Case cases[] = {
      {"epoch", ErrorCode::kCorrupt, [](ShardHeader& h) { h.epoch = 78; }},
      {"layer 4 shard 2", ErrorCode::kCorrupt, [](ShardHeader& h) { h.layer = 4; }},
      {"layer 3 shard 1", ErrorCode::kCorrupt, [](ShardHeader& h) { h.shard = 1; }},
      {"not bfloat16", ErrorCode::kCorrupt, [](ShardHeader& h) { h.dtype = 1; }},
      {"4095 payload bytes", ErrorCode::kCorrupt, [](ShardHeader& h) { h.payload_bytes = 4095; }},
      {"holds version 7", ErrorCode::kStaleVersion, [](ShardHeader& h) { h.version = 7; }},
      {"holds version 3", ErrorCode::kStaleVersion, [](ShardHeader& h) { h.version = 3; }},
      {"residence 9", ErrorCode::kStaleVersion, [](ShardHeader& h) { h.residence = 9; }},
      // Another difference wins over the version.
      {"epoch", ErrorCode::kCorrupt, [](ShardHeader& h) { h.version = 7, h.epoch = 1; }},
  };
  for (const Case& c : cases) {
    ShardHeader header = SealedHeader();
    c.change(header);
    SealShardHeader(&header);
    const Status status = CheckShardHeader(header, Expectation());
    EXPECT_EQ(CodeOf(status), c.code) << c.wanted;
    EXPECT_NE(MessageOf(status).find(c.wanted), std::string::npos) << MessageOf(status);
    EXPECT_NE(MessageOf(status).find("layer 3 shard 2"), std::string::npos) << MessageOf(status);
  }
}

}  // namespace
}  // namespace luwu
