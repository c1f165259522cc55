// luwu-bench: measures LuWu on this machine next to plain yardsticks. The driver, and the agents
// that play the yardsticks; workers are a program of their own (worker_main.cc).
#include <CLI/CLI.hpp>

#include "client/cli/stop_signals.h"
#include "common/base/bytes.h"
#include "tests/bench/command_line.h"
#include "tests/bench/export/export_bench.h"
#include "tests/bench/optimizer/optimizer_bench.h"
#include "tests/bench/report.h"
#include "tests/bench/spill/spill_bench.h"
#include "tests/bench/steps.h"
#include "tests/bench/transfer.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

cli::StopSignals& Signals() {
  static cli::StopSignals signals;
  return signals;
}
bool StopRequested() { return Signals().Requested(); }

struct CommandLine {
  TrainOptions train;
  uint64_t params = 100'000'000;
  uint64_t layers = 12;
  uint64_t transfer_mib = 256;
  std::string table;
  JsonTarget train_json;
  OptimizerBenchOptions optimizer;
  JsonTarget optimizer_json;
  SpillBenchOptions spill;
  JsonTarget spill_json;
  ExportBenchOptions exported;
  JsonTarget exported_json;
  int agent_link = -1;
};

void AddJobOptions(CLI::App* train, CommandLine* line) {
  TrainOptions* options = &line->train;
  AddCount(train, "--params", &line->params, "Parameters of the model")->default_str("100M");
  train->add_option("--layers", line->layers, "Equal layers to divide them into")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  train
      ->add_option("--table", line->table,
                   "File with a layer table, \"name elements\" a line, instead of both")
      ->check(CLI::ExistingFile);
  train->add_option("--workers", options->workers, "Worker processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  train->add_option("--daemons", options->daemons, "luwud processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  train->add_option("--transport", options->transport)
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->capture_default_str();
  train->add_option("--wire-dtype", options->wire_dtype, "Of served weights and gradients")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  train->add_option("--connections", options->connections, "tcp connections to each daemon")
      ->check(CLI::Range(0, 16))
      ->default_str("the library's default");
  train->add_option("--update-threads", options->update_threads, "Of each daemon; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  train->add_flag("!--no-undo", options->keep_undo_state,
                  "Keep no second copy of the optimizer state (half the memory)");
}

void AddRunOptions(CLI::App* train, CommandLine* line) {
  TrainOptions* options = &line->train;
  train
      ->add_option("--compute-ms", options->compute_ms,
                   "Pretended forward time of a layer; backward takes twice as long")
      ->check(CLI::Range(0.0, 60000.0))
      ->capture_default_str();
  train->add_option("--steps", options->steps, "Measured training steps; 0: none")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  train->add_option("--rounds", options->rounds, "Measured rounds of isolated transfers; 0: none")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  train
      ->add_option("--transfer-mib", line->transfer_mib,
                   "MiB of each worker in each isolated transfer")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  train->add_option("--small-fetches", options->small_fetches, "4 KiB fetches behind a latency")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  train->add_option("--luwud", options->luwud, "The daemon's program")
      ->check(CLI::ExistingFile)
      ->default_str("luwud beside luwu-bench");
  AddJsonOption(train, &line->train_json);
}

// The daemons have ended when it returns.
Status Measure(const TrainOptions& options, Report* report) {
  ASSIGN_OR_RETURN(Daemons daemons, Daemons::Run({.binary = options.luwud,
                                                  .count = options.daemons,
                                                  .memory_bytes = DaemonBytes(options),
                                                  .update_threads = options.update_threads,
                                                  .shm = options.transport == "shm",
                                                  .stop = StopRequested}));
  if (options.rounds > 0) RETURN_IF_ERROR(RunTransfers(options, StopRequested, &daemons, report));
  if (options.steps > 0) RETURN_IF_ERROR(RunSteps(options, StopRequested, &daemons, report));
  return OkStatus();
}

Status Train(CommandLine* line) {
  TrainOptions& options = line->train;
  options.transfer_bytes = line->transfer_mib * kMiB;
  options.layers = EqualLayers(line->params, line->layers);
  if (!line->table.empty()) {
    ASSIGN_OR_RETURN(options.layers, ReadLayerTable(line->table));
  }
  if (options.luwud.empty()) {
    options.luwud = SiblingProgram("luwud");
  }
  const OthersMeter others;
  Report report;
  report.options = options;
  report.machine = DescribeMachine();
  for (const BenchLayer& layer : options.layers) report.params += layer.elements;
  RETURN_IF_ERROR(Measure(options, &report));
  report.others_cpu_share = others.Share();
  return WriteReport(line->train_json, ReportText(report), ReportJson(report));
}

void AddOptimizerOptions(CLI::App* command, CommandLine* line) {
  OptimizerBenchOptions* options = &line->optimizer;
  AddCount(command, "--params", &options->params, "Parameters")->default_str("100M");
  command->add_option("--threads", options->threads, "Thread counts, ascending")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--workers", options->workers, "How many gradients are summed")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "Measured rounds of each case")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--cases", options->cases)
      ->check(CLI::IsMember({"all", "workers", "optimizers", "modes", "portable", "none"}))
      ->capture_default_str();
  command->add_flag("!--no-daemon", options->daemon, "Leave the whole daemon path out");
  command->add_option("--luwud", options->luwud, "The daemon's program")
      ->check(CLI::ExistingFile)
      ->default_str("luwud beside luwu-bench");
  AddJsonOption(command, &line->optimizer_json);
}

Status Optimizer(CommandLine* line) {
  if (line->optimizer.luwud.empty()) line->optimizer.luwud = SiblingProgram("luwud");
  OptimizerReport report;
  RETURN_IF_ERROR(RunOptimizerBench(line->optimizer, StopRequested, &report));
  return WriteReport(line->optimizer_json, OptimizerText(report), OptimizerJson(report));
}

void AddSpillOptions(CLI::App* command, CommandLine* line) {
  SpillBenchOptions* options = &line->spill;
  AddDeviceOptions(command, options);
  command->add_option("--engine", options->engine)
      ->check(CLI::IsMember({"extents", "rocksdb_values"}))
      ->capture_default_str();
  command
      ->add_option("--oversubscription", options->oversubscription,
                   "What the job would take in memory / what it gets")
      ->check(CLI::Range(1.0, 1000.0))
      ->capture_default_str();
  AddJsonOption(command, &line->spill_json);
}

Status Spill(CommandLine* line) {
  SpillReport report;
  RETURN_IF_ERROR(RunSpillBench(line->spill, StopRequested, &report));
  return WriteReport(line->spill_json, SpillText(report), SpillJson(report));
}

Status Export(CommandLine* line) {
  ExportReport report;
  RETURN_IF_ERROR(RunExportBench(line->exported, StopRequested, &report));
  return WriteReport(line->exported_json, ExportText(report), ExportJson(report));
}

int Run(int argc, char** argv) {
  CommandLine line;
  CLI::App app{"luwu-bench: LuWu's speed on this machine, next to plain yardsticks"};
  app.name("luwu-bench");
  app.require_subcommand(1);
  CLI::App* train = app.add_subcommand(
      "train", "Synthetic workers train through real daemons, with and without compute");
  AddJobOptions(train, &line);
  AddRunOptions(train, &line);
  AddOptimizerOptions(
      app.add_subcommand("optimizer",
                         "The optimizer engine next to a stream of the same loads and stores"),
      &line);
  CLI::App* spill =
      app.add_subcommand("spill", "Training with state on disk next to the raw device");
  AddSpillOptions(spill, &line);
  CLI::App* exported =
      app.add_subcommand("export", "Export of a checkpoint as safetensors next to the raw device");
  AddExportOptions(exported, &line.exported);
  AddJsonOption(exported, &line.exported_json);
  CLI::App* agent = app.add_subcommand("agent", "A process of a running bench")->group("");
  agent->add_option("link", line.agent_link)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, std::cout, std::cerr) == 0 ? 0 : kExitUsage;
  }
  if (agent->parsed()) {
    RunAgent(UniqueFd(line.agent_link));
    return 0;
  }
  Signals().Install();
  const Status status = train->parsed()      ? Train(&line)
                        : spill->parsed()    ? Spill(&line)
                        : exported->parsed() ? Export(&line)
                                             : Optimizer(&line);
  if (status.ok()) return 0;
  fmt::print(stderr, "luwu-bench: {}\n", ToString(status));
  return kExitFailure;
}

}  // namespace
}  // namespace luwu::bench

int main(int argc, char** argv) { return luwu::bench::Run(argc, argv); }
