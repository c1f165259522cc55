// Random secrets and HMAC-SHA256 (OpenSSL), for the handshake of data connections.
#pragma once

#include <array>
#include <string>

#include "common/base/bytes.h"

namespace luwu {

inline constexpr size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;
using Mac = std::array<std::byte, 32>;

// From the kernel's random source. CHECKs that it answers.
Secret RandomSecret();
uint64_t RandomU64();

Mac HmacSha256(const Secret& key, ConstByteSpan message);

// Compares in constant time.
bool MacEqual(const Mac& a, const Mac& b);

}  // namespace luwu
