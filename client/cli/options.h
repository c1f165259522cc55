// The command line of luwuctl, parsed with CLI11.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/tls_files.h"
#include "common/rpc/tls.h"
#include "common/tensor/dtype.h"

namespace luwu::cli {

// Process exit codes; --help documents them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,    // no daemon answered, or the command failed
  kExitUsage = 2,      // the command line is wrong
  kExitUnhealthy = 3,  // a node does not answer, or a daemon reports ERR
};

enum class Command {
  kStatus,
  kJobs,
  kHealth,
  kDelete,
  kImport,
  kExport,
  kCheckpoint,
  kPlan,
  kDoctor
};
enum class CheckpointVerb { kCreate, kList, kDelete, kRestore };

struct Options {
  Command command = Command::kStatus;
  std::vector<std::string> endpoints;  // at least one
  bool json = false;
  std::optional<double> watch_s;      // seconds between frames
  TlsFiles tls = {};                  // empty: plain text
  rpc::Credentials credentials = {};  // of them
  uint64_t timeout_ms = 2000;         // of each round of calls
  bool timeout_given = false;
  std::string job;     // kDelete, kImport, kExport, kCheckpoint, kPlan
  bool force = false;  // kDelete
  CheckpointVerb checkpoint_verb = CheckpointVerb::kList;  // kCheckpoint
  std::string checkpoint;  // its name, but for kList; kExport: empty for the job as it is
  // kImport, kExport
  std::string path;
  bool optimizer_state = false;
  bool allow_missing = false;     // kImport
  bool allow_unexpected = false;  // kImport
  DType dtype = DType::kFloat32;  // kExport
  uint64_t file_bytes_max = 0;    // kExport
  bool overwrite = false;         // kExport
  // kDoctor
  bool local = false;       // this host only
  std::string config = {};  // of the daemon that runs here, or will; empty: none
};

// Sets `options`. A value means: exit with this code; help or the error text has been printed.
std::optional<int> ParseCommandLine(int argc, char** argv, Options* options);

}  // namespace luwu::cli
