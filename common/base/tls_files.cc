#include "common/base/tls_files.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

namespace luwu {
namespace {

constexpr int kFileBytesMax = 1 << 20;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

StatusOr<std::string> ReadText(const std::string& what, const std::string& path) {
  const auto failed = [&](int error) {
    return Error(ErrorCode::kInvalidArgument, "TLS {} {}: cannot be read: {}", what, path,
                 std::strerror(error));
  };
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "re"),
                                                                std::fclose);
  if (file == nullptr) return failed(errno);
  std::string text;
  std::array<char, 4096> piece;
  errno = 0;
  while (const size_t got = std::fread(piece.data(), 1, piece.size(), file.get())) {
    text.append(piece.data(), got);
    if (text.size() > kFileBytesMax) {
      return Error(ErrorCode::kInvalidArgument, "TLS {} {}: is too long for a PEM file", what,
                   path);
    }
  }
  if (std::ferror(file.get()) != 0) return failed(errno == 0 ? EIO : errno);
  return text;
}

Bio Over(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
}

StatusOr<Certificate> ToCertificate(const std::string& what, const std::string& path,
                                    const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(Over(text).get(), nullptr, nullptr, nullptr),
                          X509_free);
  ERR_clear_error();
  if (certificate == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "TLS {} {}: holds no PEM certificate", what, path);
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return Error(ErrorCode::kInvalidArgument, "TLS {} {}: has expired; renew it", what, path);
  }
  return certificate;
}

// Nobody is there to type a passphrase.
int NoPassphrase(char*, int, int, void*) { return 0; }

StatusOr<Key> ToKey(const std::string& path, const std::string& text) {
  Key key(PEM_read_bio_PrivateKey(Over(text).get(), nullptr, NoPassphrase, nullptr), EVP_PKEY_free);
  ERR_clear_error();
  if (key != nullptr) return key;
  return Error(ErrorCode::kInvalidArgument,
               "TLS key {}: holds no PEM private key without a passphrase", path);
}

Status CheckAllThere(const TlsFiles& files) {
  for (const auto& [name, path] :
       {std::pair{"certificate", &files.certificate}, {"key", &files.key}, {"CA", &files.ca}}) {
    if (!path->empty()) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "TLS needs a certificate, its key and a CA; the {} is not given", name);
  }
  return OkStatus();
}

}  // namespace

Status CheckTlsFiles(const TlsFiles& files) {
  if (files.empty()) return OkStatus();
  RETURN_IF_ERROR(CheckAllThere(files));
  // One file with both may be replaced between two looks at it.
  ASSIGN_OR_RETURN(const std::string chain, ReadText("certificate", files.certificate));
  std::string key_text = chain;
  if (files.key != files.certificate) {
    ASSIGN_OR_RETURN(key_text, ReadText("key", files.key));
  }
  ASSIGN_OR_RETURN(const Certificate certificate,
                   ToCertificate("certificate", files.certificate, chain));
  ASSIGN_OR_RETURN(const Key key, ToKey(files.key, key_text));
  ASSIGN_OR_RETURN(const std::string ca, ReadText("CA", files.ca));
  RETURN_IF_ERROR(ToCertificate("CA", files.ca, ca).status());
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (fits) return OkStatus();
  return Error(ErrorCode::kInvalidArgument, "TLS key {}: belongs to another certificate than {}",
               files.key, files.certificate);
}

}  // namespace luwu
