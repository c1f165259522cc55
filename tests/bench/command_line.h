// What the subcommands of luwu-bench share: counts such as "100M" and where the report goes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "tests/bench/link.h"

namespace luwu::bench {

// An option that takes "100M", "1.5G", "4096".
CLI::Option* AddCount(CLI::App* app, const std::string& name, uint64_t* count,
                      const std::string& description);

// What both benches of a device ask for: --dir, --params, --layers, --rounds, with the defaults
// that are there.
struct DeviceOptions {
  std::string folder;  // on the device that is measured
  uint64_t params = 100'000'000;
  uint64_t layers = 32;
  uint32_t rounds = 5;
};
void AddDeviceOptions(CLI::App* app, DeviceOptions* options);

// --json [FILE]: JSON to FILE, or to standard output without FILE; text without the option.
struct JsonTarget {
  CLI::Option* option = nullptr;
  std::string file;
};
void AddJsonOption(CLI::App* app, JsonTarget* target);
Status WriteReport(const JsonTarget& target, const std::string& text, const Json& json);

}  // namespace luwu::bench
