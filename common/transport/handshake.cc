#include "common/transport/handshake.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "common/base/check.h"

namespace luwu::transport {

static_assert(std::endian::native == std::endian::little, "wire layouts are little-endian");

Mac HandshakeMac(const Secret& secret, std::string_view role, const Nonce& acceptor_nonce,
                 const Answer& answer) {
  constexpr size_t kRoleBytes = 8;
  constexpr size_t kAnswerBytes = offsetof(Answer, mac);
  std::array<std::byte, kRoleBytes + sizeof(Nonce) + kAnswerBytes> message = {};
  LUWU_CHECK(role.size() <= kRoleBytes, "roles are short");
  std::memcpy(message.data(), role.data(), role.size());
  std::memcpy(message.data() + kRoleBytes, acceptor_nonce.data(), acceptor_nonce.size());
  std::memcpy(message.data() + kRoleBytes + sizeof(Nonce), &answer, kAnswerBytes);
  return HmacSha256(secret, message);
}

}  // namespace luwu::transport
