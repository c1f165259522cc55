// `luwu-bench export`: safetensors export of a named checkpoint, by luwuctl from a daemon with a
// data directory, against the raw device for the same reads and writes, in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/child.h"
#include "tests/bench/command_line.h"
#include "tests/bench/machine.h"

namespace luwu::bench {

struct ExportBenchOptions : DeviceOptions {
  std::string luwud;  // the daemon's program
};

struct ExportRound {
  double seconds = 0;      // of luwuctl, from its start to its end
  double raw_seconds = 0;  // for the same bytes, right before
  double ratio() const { return raw_seconds / seconds; }
};

// fp32 files; AdamW's state. `read_bytes`: stored shards are read whole, see
// docs/operating/safetensors.md.
struct ExportReport {
  struct Kind {
    uint64_t read_bytes = 0;
    uint64_t written_bytes = 0;
    std::vector<ExportRound> rounds;
  };
  ExportBenchOptions options;
  MachineInfo machine;
  double others_cpu_share = 0;
  Kind masters, with_optimizer_state;
};

void AddExportOptions(CLI::App* command, ExportBenchOptions* options);
Status RunExportBench(const ExportBenchOptions& options, StopCheck stop, ExportReport* report);

Json ExportJson(const ExportReport& report);
std::string ExportText(const ExportReport& report);

}  // namespace luwu::bench
