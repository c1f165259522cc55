// The child side of a Link: runs one handler per command until the driver is gone.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/bench/link.h"

namespace luwu::bench {

using Handler = std::function<StatusOr<Json>(const Json& command)>;

// A handler's error goes to the driver as {"error": text}; the loop goes on.
void RunCommands(Link link, const std::map<std::string, Handler>& handlers);

}  // namespace luwu::bench
