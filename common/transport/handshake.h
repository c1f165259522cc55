// The bytes of the handshake that opens every data connection (connect.h), and its MACs. Layouts
// are little-endian and fixed; the values of a peer are hostile until the MAC has been checked.
//
//   acceptor -> dialler   Nonce
//   dialler  -> acceptor  Answer
//   acceptor -> dialler   Mac with role "daemon"
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/hmac.h"
#include "common/transport/transport.h"

namespace luwu::transport {

using Nonce = Secret;
inline Nonce RandomNonce() { return RandomSecret(); }

inline constexpr uint32_t kAnswerMagic = 0x3144574c;  // "LWD1"

struct Answer {
  uint32_t magic;
  uint32_t kind;  // Kind, so that an answer for one transport is no good on the other
  uint64_t session_id;
  uint64_t link_id;     // random per dial: connections of two dials are never mixed
  uint32_t connection;  // 0 .. connections - 1
  uint32_t connections;
  Nonce nonce;
  Mac mac;
};
static_assert(sizeof(Answer) == 96);

inline constexpr std::string_view kRoleClient = "client";
inline constexpr std::string_view kRoleDaemon = "daemon";

// HMAC over the role, the acceptor's nonce and every field of the answer except its MAC.
Mac HandshakeMac(const Secret& secret, std::string_view role, const Nonce& acceptor_nonce,
                 const Answer& answer);

}  // namespace luwu::transport
