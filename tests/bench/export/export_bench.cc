#include "tests/bench/export/export_bench.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/bench/samples.h"
#include "tests/bench/spill/raw_device.h"
#include "tests/bench/train_options.h"
#include "tests/bench/workers.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kRawBlockBytes = 1 << 20;
constexpr uint64_t kMasterBytes = 4;
constexpr uint64_t kStateBytes = 12;  // masters and both moments
constexpr const char* kCheckpoint = "bench";

class ExportBench {
 public:
  ExportBench(const ExportBenchOptions& options, StopCheck stop, ExportReport* report)
      : options_(options), stop_(stop), report_(report), work_(options.folder + "/luwu-export") {}
  ~ExportBench() {
    daemons_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(work_, ignored);
  }

  Status Run() {
    std::error_code error;
    if (!std::filesystem::create_directories(work_, error)) {
      return Error(ErrorCode::kUnavailable, "cannot make {}: {}", work_,
                   error ? error.message() : "it exists: remove it");
    }
    RETURN_IF_ERROR(MakeCheckpoint());
    const uint64_t blocks = std::max<uint64_t>(1, options_.params * kMasterBytes / kRawBlockBytes);
    ASSIGN_OR_RETURN(raw_, RawDevice::Create({.path = work_ + "/raw",
                                              .pass_bytes = blocks * kRawBlockBytes,
                                              .block_bytes = kRawBlockBytes}));
    report_->masters.read_bytes = report_->with_optimizer_state.read_bytes =
        options_.params * kStateBytes;
    report_->masters.written_bytes = options_.params * kMasterBytes;
    report_->with_optimizer_state.written_bytes = options_.params * kStateBytes;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      std::fprintf(stderr, "\rexport: round %u of %u ", round + 1, options_.rounds);
      RETURN_IF_ERROR(Measure({}, &report_->masters));
      RETURN_IF_ERROR(Measure({"--optimizer-state"}, &report_->with_optimizer_state));
    }
    std::fputs("\n", stderr);
    return OkStatus();
  }

 private:
  // A model after one step: no moment is zero.
  Status MakeCheckpoint() {
    TrainOptions train;
    train.layers = EqualLayers(options_.params, options_.layers);
    train.keep_undo_state = false;
    BenchJob job = TrainingJob(train);
    job.layers = train.layers;
    ASSIGN_OR_RETURN(Daemons daemons, Daemons::Run({.binary = options_.luwud,
                                                    .memory_bytes = DaemonBytes(train),
                                                    .storage_path = work_,
                                                    .stop = stop_}));
    daemons_ = std::make_unique<Daemons>(std::move(daemons));
    ASSIGN_OR_RETURN(std::vector<Child> workers, StartWorkers(train, job, *daemons_, stop_));
    RETURN_IF_ERROR(workers[0].Call({{"do", "step"}, {"step", 0}, {"compute_ms", 0}}).status());
    RETURN_IF_ERROR(Luwuctl({"checkpoint", "create", job.name, kCheckpoint}));
    job_ = job.name;
    return workers[0].Call({{"do", "close"}}).status();
  }

  Status Measure(const std::vector<std::string>& more, ExportReport::Kind* kind) {
    ExportRound round;
    ASSIGN_OR_RETURN(const RawDevice::Transfer raw,
                     raw_->SecondsFor(kind->read_bytes, kind->written_bytes));
    round.raw_seconds = raw.seconds;
    const std::string folder = work_ + "/out";
    std::vector<std::string> arguments = {"export", job_, folder, "--checkpoint", kCheckpoint};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(Luwuctl(arguments));
    round.seconds = MonotonicSeconds() - begin;
    kind->rounds.push_back(round);
    std::filesystem::remove_all(folder);
    return OkStatus();
  }

  Status Luwuctl(std::vector<std::string> arguments) {
    const std::string output = work_ + "/luwuctl.log";
    arguments.insert(arguments.begin(),
                     {SiblingProgram("luwuctl"), "--endpoint", daemons_->endpoints()});
    const std::string command = fmt::format("{}", fmt::join(arguments, " "));
    ASSIGN_OR_RETURN(Process process,
                     Process::Run({.arguments = std::move(arguments), .output_path = output}));
    ASSIGN_OR_RETURN(const int code, process.Wait(stop_));
    if (code == 0) return OkStatus();
    std::ifstream file(output);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return Error(ErrorCode::kInternal, "{} ended with {}: {}", command, code, text);
  }

  const ExportBenchOptions options_;
  const StopCheck stop_;
  ExportReport* const report_;
  const std::string work_;
  std::string job_;
  std::unique_ptr<Daemons> daemons_;
  std::unique_ptr<RawDevice> raw_;
};

}  // namespace

void AddExportOptions(CLI::App* command, ExportBenchOptions* options) {
  AddDeviceOptions(command, options);
  command->add_option("--luwud", options->luwud, "The daemon's program")
      ->check(CLI::ExistingFile)
      ->default_str("luwud beside luwu-bench");
}

Status RunExportBench(const ExportBenchOptions& options, StopCheck stop, ExportReport* report) {
  const OthersMeter others;
  report->machine = DescribeMachine();
  report->options = options;
  if (report->options.luwud.empty()) report->options.luwud = SiblingProgram("luwud");
  RETURN_IF_ERROR(ExportBench(report->options, stop, report).Run());
  report->others_cpu_share = others.Share();
  return OkStatus();
}

}  // namespace luwu::bench
