// Whether a text can be the control address of a daemon. For what people type: the client library's
// endpoints and luwuctl's. gRPC itself takes anything, gives it the port of https when it has none,
// and complains on stderr.
#pragma once

#include <string>

#include "common/base/status.h"

namespace luwu::rpc {

// "host:port" (an IPv6 host in brackets) or "unix:/path"; kInvalidArgument for anything else.
Status CheckAddress(const std::string& address);

}  // namespace luwu::rpc
