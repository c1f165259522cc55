#include "common/base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "common/base/check.h"

namespace luwu {
namespace {

template <typename T>
unsigned char* Bytes(T* object) {
  return static_cast<unsigned char*>(static_cast<void*>(object));
}

}  // namespace

Secret RandomSecret() {
  Secret secret;
  LUWU_CHECK(RAND_bytes(Bytes(secret.data()), static_cast<int>(secret.size())) == 1,
             "the random source must answer");
  return secret;
}

uint64_t RandomU64() {
  uint64_t value = 0;
  LUWU_CHECK(RAND_bytes(Bytes(&value), sizeof value) == 1, "the random source must answer");
  return value;
}

Mac HmacSha256(const Secret& key, ConstByteSpan message) {
  Mac mac;
  unsigned int length = 0;
  const auto* data = static_cast<const unsigned char*>(static_cast<const void*>(message.data()));
  const void* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data,
                          message.size(), Bytes(mac.data()), &length);
  LUWU_CHECK(done != nullptr && length == mac.size(), "HMAC-SHA256 must succeed");
  return mac;
}

bool MacEqual(const Mac& a, const Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace luwu
