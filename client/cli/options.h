// The command line of luwuctl, parsed with CLI11.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace luwu::cli {

// Process exit codes; --help documents them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,    // no daemon answered, or the command failed
  kExitUsage = 2,      // the command line is wrong
  kExitUnhealthy = 3,  // a node does not answer, or a daemon reports ERR
};

enum class Command { kStatus, kJobs, kHealth, kDelete };

struct Options {
  Command command = Command::kStatus;
  std::vector<std::string> endpoints;  // at least one
  bool json = false;
  std::optional<double> watch_s;  // seconds between frames
  uint64_t timeout_ms = 2000;     // of each round of calls
  std::string job;                // kDelete
  bool force = false;             // kDelete
};

// Sets `options`. A value means: exit with this code; help or the error text has been printed.
std::optional<int> ParseCommandLine(int argc, char** argv, Options* options);

}  // namespace luwu::cli
