#include "client/cli/options.h"

#include <cstdlib>
#include <iostream>

#include <CLI/CLI.hpp>

#include "common/rpc/address.h"

namespace luwu::cli {
namespace {

constexpr char kDefaultEndpoint[] = "127.0.0.1:7070";
constexpr double kDefaultWatchSeconds = 2;

constexpr char kFooter[] = R"(
Exit codes: 0 all nodes answer and none reports ERR; 1 no daemon answers, or the command failed;
2 wrong usage; 3 a node does not answer or reports ERR (a job or worker check, low memory, ...).

JSON: {"overall": "SEVERITY_OK", "nodes": [{"name", "address", "error", ...}]}; `error` is null or
text; `status` adds "status" (message DaemonStatus), `jobs` adds "jobs" (JobStatus), `health` adds
"health" and "checks" (Check), with the field names of proto/luwu/v1/status.proto. With --watch
every frame is one line.
)";

// What is wrong with one of the addresses; empty when nothing is.
std::string CheckEndpoint(const std::string& address) {
  const Status status = rpc::CheckAddress(address);
  return status.ok() ? "" : MessageOf(status);
}

void AddOptions(CLI::App* app, Options* options) {
  app->add_option("-e,--endpoint", options->endpoints,
                  "Control address of a daemon; one is enough, the others are asked of it; may be "
                  "repeated")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false)  // each -e takes one, so that a job's name may follow
      ->envname("LUWU_ENDPOINT")
      ->delimiter(',')
      ->check(CLI::Validator(CheckEndpoint, ""))
      ->default_str(kDefaultEndpoint);
  app->add_option_function<std::string>(
         "-o,--output", [options](const std::string& format) { options->json = format == "json"; },
         "Output format: table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORMAT")
      ->default_str("table");
  app->add_option("--timeout-ms", options->timeout_ms, "How long to wait for the daemons")
      ->check(CLI::Range(uint64_t{1}, uint64_t{3'600'000}))
      ->type_name("MS")
      ->capture_default_str();
}

void AddCommands(CLI::App* app, Options* options) {
  const auto add = [app, options](Command command, const char* name, const char* text) {
    CLI::App* sub = app->add_subcommand(name, text);
    sub->callback([options, command] { options->command = command; });
    return sub;
  };
  add(Command::kStatus, "status", "Nodes, jobs and checks of the whole cluster");
  add(Command::kJobs, "jobs", "Every job on every node, with its workers");
  add(Command::kHealth, "health", "Whether each daemon serves, for scripts and probes");
  CLI::App* remove = add(Command::kDelete, "delete", "Free a job on all nodes");
  remove->add_option("job", options->job, "Name of the job")->required()->type_name("JOB");
  remove->add_flag("--force", options->force, "Also when workers have open sessions");
}

}  // namespace

std::optional<int> ParseCommandLine(int argc, char** argv, Options* options) {
  CLI::App app{"luwuctl: look at LuWu daemons and their jobs"};
  app.name("luwuctl");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string(LUWU_VERSION_TEXT));
  app.require_subcommand(1);
  app.fallthrough();  // options may also follow the command
  app.get_formatter()->column_width(34);
  AddOptions(&app, options);
  std::string watch_text;  // stays empty when no number is given
  CLI::Option* watch =
      app.add_option("-w,--watch", watch_text, "Repeat every SECONDS (default 2) until Ctrl-C")
          ->expected(0, 1)
          ->check(CLI::Range(0.1, 86400.0))
          ->type_name("[SECONDS]");
  AddCommands(&app, options);
  try {
    app.parse(argc, argv);
    if (watch->count() > 0) {
      if (options->command == Command::kDelete) {
        throw CLI::ValidationError("--watch", "cannot be used with delete");
      }
      options->watch_s = watch_text.empty() ? kDefaultWatchSeconds : std::stod(watch_text);
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error, std::cout, std::cerr) == 0 ? kExitOk : kExitUsage;
  }
  if (options->endpoints.empty()) options->endpoints = {kDefaultEndpoint};
  return std::nullopt;
}

}  // namespace luwu::cli
