#include "common/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace luwu {
namespace {

ConstByteSpan Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::vector<std::byte> Sequence(size_t count, int first, int step) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::byte>(first + static_cast<int>(i) * step);
  }
  return out;
}

// One bit at a time, from the polynomial.
uint32_t Reference(ConstByteSpan data) {
  uint32_t crc = ~0u;
  for (const std::byte byte : data) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

TEST(Crc32cTest, KnownVectors) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(Sequence(32, 0, 0)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(Sequence(32, 0xff, 0)), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Sequence(32, 0, 1)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Sequence(32, 31, -1)), 0x113fdb5cu);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32cTest, AgreesWithTheDefinitionAtEveryLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<std::byte> data(600);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  for (size_t length = 0; length <= 530; ++length) {
    const ConstByteSpan part = ConstByteSpan(data).subspan(length % 17, length);
    ASSERT_EQ(Crc32c(part), Reference(part)) << length;
  }
}

TEST(Crc32cTest, PiecesGiveTheCrcOfTheWhole) {
  const std::vector<std::byte> data = Sequence(300, 5, 7);
  const ConstByteSpan whole(data);
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    ASSERT_EQ(Crc32c(whole.subspan(cut), Crc32c(whole.first(cut))), Crc32c(whole)) << cut;
  }
}

}  // namespace
}  // namespace luwu
