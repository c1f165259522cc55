#include "common/base/hmac.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

namespace luwu {
namespace {

std::string Hex(const Mac& mac) {
  std::string out;
  for (const std::byte byte : mac) out += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return out;
}

// RFC 4231 test case 1 and 2, whose keys are padded with zeros to 32 bytes: HMAC pads a short key
// with zeros itself, so the MACs are those of the RFC.
TEST(HmacTest, KnownVectors) {
  Secret key = {};
  std::fill_n(key.begin(), 20, std::byte{0x0b});
  const std::string_view hi = "Hi There";
  EXPECT_EQ(Hex(HmacSha256(key, std::as_bytes(std::span(hi.data(), hi.size())))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  key = {};
  const std::string_view jefe = "Jefe";
  for (size_t i = 0; i < jefe.size(); ++i) key[i] = static_cast<std::byte>(jefe[i]);
  const std::string_view question = "what do ya want for nothing?";
  EXPECT_EQ(Hex(HmacSha256(key, std::as_bytes(std::span(question.data(), question.size())))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(HmacTest, AnyDifferenceInTheMacIsSeen) {
  const Mac mac = HmacSha256(RandomSecret(), {});
  EXPECT_TRUE(MacEqual(mac, mac));
  for (size_t bit = 0; bit < 8 * mac.size(); ++bit) {
    Mac other = mac;
    other[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(MacEqual(mac, other)) << bit;
  }
}

TEST(HmacTest, SecretsDoNotRepeat) {
  std::set<Secret> secrets;
  std::set<uint64_t> numbers;
  for (int i = 0; i < 1000; ++i) {
    secrets.insert(RandomSecret());
    numbers.insert(RandomU64());
  }
  EXPECT_EQ(secrets.size(), 1000u);
  EXPECT_EQ(numbers.size(), 1000u);
}

}  // namespace
}  // namespace luwu
