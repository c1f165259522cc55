// luwu-bench: measures LuWu on this machine next to plain yardsticks. The driver, and the agents
// that play the yardsticks; workers are a program of their own (worker_main.cc).
#include <cstdio>
#include <fstream>

#include <CLI/CLI.hpp>

#include "client/cli/stop_signals.h"
#include "common/base/bytes.h"
#include "tests/bench/report.h"
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
  std::string json;  // empty: text; "-": JSON on standard output; else a file
  int agent_link = -1;
};

// "100M", "1.5G", "4096".
std::string ParseCount(const std::string& text, uint64_t* count) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return "expected a number, with k, M or G after it if need be";
  }
  const std::string unit = text.substr(used);
  if (unit == "k" || unit == "K") value *= 1e3;
  if (unit == "M") value *= 1e6;
  if (unit == "G") value *= 1e9;
  if (!(unit.empty() || unit == "k" || unit == "K" || unit == "M" || unit == "G") || value < 1 ||
      value > 1e13) {
    return "expected a count between 1 and 10000G, such as 100M";
  }
  *count = static_cast<uint64_t>(value);
  return "";
}

void AddJobOptions(CLI::App* train, CommandLine* line) {
  TrainOptions* options = &line->train;
  train
      ->add_option_function<std::string>(
          "--params",
          [line](const std::string& text) {
            const std::string error = ParseCount(text, &line->params);
            if (!error.empty()) throw CLI::ValidationError("--params", error);
          },
          "Parameters of the model")
      ->default_str("100M");
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
  train->add_option("--json", line->json, "Write JSON to FILE, or to standard output without FILE")
      ->expected(0, 1)
      ->type_name("[FILE]");
}

Status WriteReport(const CommandLine& line, const Report& report) {
  if (line.json != "-") std::fputs(ReportText(report).c_str(), stdout);
  if (line.json.empty()) return OkStatus();
  const std::string text = ReportJson(report).dump(2) + "\n";
  if (line.json == "-") {
    std::fputs(text.c_str(), stdout);
    return OkStatus();
  }
  std::ofstream file(line.json);
  file << text;
  file.close();
  if (file) return OkStatus();
  return Error(ErrorCode::kUnavailable, "cannot write {}", line.json);
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
  return WriteReport(*line, report);
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
  if (train->get_option("--json")->count() > 0 && line.json.empty()) line.json = "-";
  Signals().Install();
  const Status status = Train(&line);
  if (status.ok()) return 0;
  fmt::print(stderr, "luwu-bench: {}\n", ToString(status));
  return kExitFailure;
}

}  // namespace
}  // namespace luwu::bench

int main(int argc, char** argv) { return luwu::bench::Run(argc, argv); }
