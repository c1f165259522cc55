#include "common/base/tls_hello.h"

#include <memory>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/check.h"

namespace luwu {

std::string TlsClientHello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  LUWU_CHECK(context != nullptr, "OpenSSL has no TLS");
  const std::unique_ptr<SSL, decltype(&SSL_free)> client(SSL_new(context.get()), SSL_free);
  LUWU_CHECK(client != nullptr, "OpenSSL has no memory");
  BIO* out = BIO_new(BIO_s_mem());  // both are the client's from here on
  SSL_set_bio(client.get(), BIO_new(BIO_s_mem()), out);
  SSL_set_connect_state(client.get());
  SSL_do_handshake(client.get());  // writes the hello, then wants an answer
  ERR_clear_error();
  char* bytes = nullptr;
  const long length = BIO_get_mem_data(out, &bytes);
  LUWU_CHECK(length > 0, "OpenSSL wrote no hello");
  return {bytes, static_cast<size_t>(length)};
}

}  // namespace luwu
