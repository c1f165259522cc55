// The first bytes of a TLS client, for asking whether anything answers on a port without becoming a
// client of it: a server that lives sends its own hello.
#pragma once

#include <string>

namespace luwu {

std::string TlsClientHello();

}  // namespace luwu
