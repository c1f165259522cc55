// The three PEM files by which one end of a TLS connection shows who it is and knows the other:
// paths, and whether what they hold can be used. Thread-safe.
#pragma once

#include <string>

#include "common/base/status.h"

namespace luwu {

struct TlsFiles {
  std::string certificate;  // with the chain up to the CA, leaf first
  std::string key;          // of the leaf, without a passphrase
  std::string ca;           // certificates that the other end's must lead to

  bool empty() const { return certificate.empty() && key.empty() && ca.empty(); }
  bool operator==(const TlsFiles&) const = default;
};

// OK when all are empty. kInvalidArgument names the file that is missing, cannot be read, is no
// PEM, has expired or, for the key, belongs to another certificate.
Status CheckTlsFiles(const TlsFiles& files);

}  // namespace luwu
