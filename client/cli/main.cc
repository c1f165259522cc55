// luwuctl: parse, ask, print, exit code.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpc/support/log.h>

#include "client/cli/call_error.h"
#include "client/cli/checkpoint.h"
#include "client/cli/cluster.h"
#include "client/cli/doctor.h"
#include "client/cli/options.h"
#include "client/cli/plan.h"
#include "client/cli/render.h"
#include "client/cli/screen.h"
#include "client/cli/stop_signals.h"
#include "client/cli/table.h"
#include "client/cli/transfer.h"

namespace luwu::cli {
namespace {

constexpr uint64_t kDeleteMs = 30'000;

struct Frame {
  std::string text;
  int exit_code = kExitOk;
  bool explained = false;  // stderr has the reason of a failure
};

int CodeFor(const std::vector<rpc::NodeStatus>& nodes) {
  const auto answers = [](const rpc::NodeStatus& node) { return node.status.ok(); };
  if (std::none_of(nodes.begin(), nodes.end(), answers)) return kExitFailure;
  return rpc::OverallSeverity(nodes) == v1::SEVERITY_ERR ? kExitUnhealthy : kExitOk;
}

Frame HealthFrame(const Options& options, Cluster* cluster) {
  const std::vector<HealthReport> reports = cluster->GetHealth();
  std::vector<rpc::NodeStatus> nodes;
  for (const HealthReport& report : reports) nodes.push_back(report.node);
  Frame frame = {"", CodeFor(nodes)};
  const auto serves = [](const HealthReport& report) { return report.health == "SERVING"; };
  if (frame.exit_code == kExitOk && !std::all_of(reports.begin(), reports.end(), serves)) {
    frame.exit_code = kExitUnhealthy;
  }
  frame.text = options.json ? rpc::JsonText(HealthJson(reports), options.watch_s ? -1 : 2) + "\n"
                            : HealthTable(reports);
  return frame;
}

Frame StatusFrame(const Options& options, Cluster* cluster) {
  const std::vector<rpc::NodeStatus> nodes = cluster->GetStatus();
  const bool jobs = options.command == Command::kJobs;
  Frame frame = {"", CodeFor(nodes)};
  if (options.json) {
    const auto json = jobs ? JobsJson(nodes) : rpc::StatusJson(nodes);
    frame.text = rpc::JsonText(json, options.watch_s ? -1 : 2) + "\n";
  } else {
    frame.text = jobs ? JobTables(nodes) : StatusTables(nodes);
  }
  return frame;
}

Frame PlanFrame(const Options& options, Cluster* cluster) {
  const std::vector<rpc::NodeStatus> nodes = cluster->GetStatus();
  const int code = CodeFor(nodes);
  if (code == kExitFailure) return {"", code};
  if (!HasJob(nodes, options.job)) {
    fmt::print(stderr, "luwuctl: no node has a job '{}'\n", Printable(options.job));
    return {.text = "", .exit_code = kExitFailure, .explained = true};
  }
  return {options.json ? rpc::JsonText(PlanJson(nodes, options.job), 2) + "\n"
                       : PlanText(nodes, options.job),
          code};
}

Frame MakeFrame(const Options& options, Cluster* cluster) {
  if (options.command == Command::kPlan) return PlanFrame(options, cluster);
  return options.command == Command::kHealth ? HealthFrame(options, cluster)
                                             : StatusFrame(options, cluster);
}

int Watch(const Options& options, Cluster* cluster, StopSignals* stop) {
  Screen screen;
  const auto interval = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(*options.watch_s));
  do {
    const Frame frame = MakeFrame(options, cluster);
    if (stop->Requested()) break;  // the frame is cut short by the signal
    const std::string gap = options.json || screen.is_terminal() ? "" : "\n";
    if (!screen.Draw(frame.text + gap)) return kExitFailure;
  } while (!stop->WaitFor(interval));
  return kExitOk;
}

// What goes wrong here FinishOutput reports.
void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// A report that nobody got is a failure (a full disk, a closed file), whatever it says.
int FinishOutput(int exit_code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return exit_code;
  const int error = errno;
  fmt::print(stderr, "luwuctl: the output could not be written{}{}\n", error == 0 ? "" : ": ",
             error == 0 ? "" : std::strerror(error));
  return exit_code == kExitUsage ? kExitUsage : kExitFailure;
}

// gRPC writes what it thinks of addresses and connections to stderr; the answers say it, too.
void SilenceGrpc() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;  // asked for
  gpr_set_log_function([](gpr_log_func_args*) {});
}

// Deleting is done when no node has the job any more and at least one had it.
int Delete(const Options& options, Cluster* cluster) {
  const std::vector<DeleteReport> reports = cluster->DeleteJob(options.job, options.force);
  const auto deleted = [](const DeleteReport& report) { return report.status.ok(); };
  const bool any = std::any_of(reports.begin(), reports.end(), deleted);
  bool failed = !any;
  for (const DeleteReport& report : reports) {
    const bool absent = CodeOf(report.status) == ErrorCode::kNotFound;
    if (report.status.ok() || (absent && any)) continue;
    failed = true;
    fmt::print(stderr, "luwuctl: {}: {}\n", Printable(report.address),
               Printable(Reason(report.status)));
  }
  Print(options.json ? rpc::JsonText(DeleteJson(options.job, reports), 2) + "\n"
                     : DeleteText(options.job, reports));
  return failed ? kExitFailure : kExitOk;
}

int Run(int argc, char** argv) {
  Options options;
  if (const auto code = ParseCommandLine(argc, argv, &options)) return *code;
  StopSignals stop;
  const bool interruptible =
      options.command == Command::kImport || options.command == Command::kExport ||
      options.command == Command::kCheckpoint || options.command == Command::kDoctor;
  if (options.watch_s || interruptible) stop.Install();
  if (options.command == Command::kDoctor) return Doctor(options, &stop);
  if (options.command == Command::kCheckpoint) return Checkpoint(options, &stop);
  if (options.command == Command::kImport) return Import(options, &stop);
  if (options.command == Command::kExport) return Export(options, &stop);
  const bool deletes = options.command == Command::kDelete;
  const bool patient = deletes && !options.timeout_given;  // a daemon waits for what is under way
  Cluster cluster(options.endpoints, options.credentials, patient ? kDeleteMs : options.timeout_ms,
                  &stop);
  if (deletes) return Delete(options, &cluster);
  if (options.watch_s) return Watch(options, &cluster, &stop);
  const Frame frame = MakeFrame(options, &cluster);
  Print(frame.text);
  if (frame.exit_code == kExitFailure && !frame.explained) {
    std::fflush(stdout);
    fmt::print(stderr,
               "luwuctl: no daemon answers at {}; is luwud running there? "
               "(--endpoint or LUWU_ENDPOINT names another)\n",
               fmt::join(options.endpoints, ", "));
  }
  return frame.exit_code;
}

}  // namespace
}  // namespace luwu::cli

int main(int argc, char** argv) {
  luwu::cli::SilenceGrpc();
  return luwu::cli::FinishOutput(luwu::cli::Run(argc, argv));
}
