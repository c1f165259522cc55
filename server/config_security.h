// The tables [tls] and [[access]] of the daemon's configuration. Inside of config.cc.
#pragma once

#include <string>

#include "common/config/config_reader.h"
#include "server/config.h"

namespace luwu {

// Errors go to `root`.
void ReadSecurity(ConfigReader& root, DaemonConfig* config);

// As TOML; empty without TLS.
std::string DumpSecurity(const DaemonConfig& config);

}  // namespace luwu
