#include "client/cli/options.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include <CLI/CLI.hpp>

#include "client/cli/suggest.h"
#include "client/cli/table.h"
#include "common/config/quantity.h"
#include "common/rpc/address.h"

namespace luwu::cli {
namespace {

constexpr char kDefaultEndpoint[] = "127.0.0.1:7070";
constexpr double kDefaultWatchSeconds = 2;
constexpr uint64_t kDefaultFileBytes = uint64_t{5} << 30;

constexpr char kFooter[] = R"(
Exit codes: 0 all nodes answer and none reports ERR; 1 no daemon answers, or the command failed;
2 wrong usage; 3 a node does not answer or reports ERR (a job or worker check, low memory, a
finding of doctor, ...).

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
  app->add_option(
         "--timeout-ms", options->timeout_ms,
         "How long to wait for the daemons; imports and exports have no limit unless given")
      ->check(CLI::Range(uint64_t{1}, uint64_t{3'600'000}))
      ->type_name("MS")
      ->capture_default_str();
}

void AddTls(CLI::App* app, TlsFiles* files) {
  const auto add = [app](const char* name, const char* variable, std::string* path,
                         const char* text) {
    app->add_option(name, *path, text)->type_name("FILE")->envname(variable);
  };
  add("--tls-ca", "LUWU_TLS_CA", &files->ca, "For daemons with [tls]: CA of their certificates");
  add("--tls-cert", "LUWU_TLS_CERTIFICATE", &files->certificate, "Your certificate");
  add("--tls-key", "LUWU_TLS_KEY", &files->key, "Its key");
}

std::string CheckAbsolute(const std::string& path) {
  if (path.starts_with('/')) return "";
  return "'" + path + "' must be an absolute path: the daemons open it, on their hosts";
}

std::string CheckNotEmpty(const std::string& name) { return name.empty() ? "it is empty" : ""; }

// As the daemons check it; here so that a name is never taken for something else on the way.
std::string CheckNewName(const std::string& name) {
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const auto allowed = [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  if (!name.empty() && alphanumeric(name.front()) &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return "";
  }
  return "'" + Printable(name) +
         "' is no name of a checkpoint: it begins with a letter or digit and has letters, digits, "
         "'.', '_' and '-'";
}

void AddPath(CLI::App* command, Options* options, const char* name, const char* text) {
  command->add_option("job", options->job, "Name of the job")->required()->type_name("JOB");
  command->add_option("path", options->path, text)
      ->required()
      ->type_name(name)
      ->check(CLI::Validator(CheckAbsolute, ""));
}

void AddImport(CLI::App* command, Options* options) {
  AddPath(command, options, "PATH",
          "A .safetensors file, an index (.json), or a folder with model.safetensors or its index; "
          "absolute, and seen by all daemons");
  command->add_flag("--allow-missing", options->allow_missing,
                    "Tensors that no file has start from zeros");
  command->add_flag("--allow-unexpected", options->allow_unexpected,
                    "Leave out tensors that the job does not have");
  command
      ->add_flag("--optimizer-state", options->optimizer_state,
                 "Also moments and counts beside PATH: training goes on at the exported step")
      ->excludes("--allow-missing");
}

void AddExport(CLI::App* command, Options* options) {
  AddPath(command, options, "DIR", "Folder for the files; absolute, and seen by all daemons");
  const auto set_dtype = [options](const std::string& name) {
    options->dtype = name == "bf16"   ? DType::kBFloat16
                     : name == "fp16" ? DType::kFloat16
                                      : DType::kFloat32;
  };
  command->add_option_function<std::string>("--dtype", set_dtype, "fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->type_name("DTYPE")
      ->default_str("fp32");
  const auto set_bytes = [options](const std::string& text) {
    const StatusOr<uint64_t> bytes = ParseBytes(text);
    if (!bytes.ok()) throw CLI::ValidationError("--max-file-bytes", MessageOf(bytes.status()));
    options->file_bytes_max = *bytes;
  };
  options->file_bytes_max = kDefaultFileBytes;
  command
      ->add_option_function<std::string>("--max-file-bytes", set_bytes,
                                         "Begin another file before one gets larger")
      ->type_name("BYTES")
      ->default_str("5GiB");
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "Of this checkpoint, while training goes on; else of the job as it is")
      ->type_name("NAME")
      ->check(CLI::Validator(CheckNotEmpty, ""));
  command->add_flag("--optimizer-state", options->optimizer_state,
                    "Also moments and counts, to go on from (fp32 only)");
  command->add_flag("--overwrite", options->overwrite, "Replace an earlier export in DIR");
}

void AddCheckpoint(CLI::App* command, Options* options) {
  command->require_subcommand(1);
  const auto add = [&](CheckpointVerb verb, const char* name, const char* text) {
    CLI::App* sub = command->add_subcommand(name, text);
    sub->callback([options, verb] { options->checkpoint_verb = verb; });
    sub->add_option("job", options->job, "Name of the job")->required()->type_name("JOB");
    if (verb == CheckpointVerb::kList) return;
    CLI::Option* positional = sub->add_option("name", options->checkpoint, "Name of the checkpoint")
                                  ->required()
                                  ->type_name("NAME");
    if (verb == CheckpointVerb::kCreate) positional->check(CLI::Validator(CheckNewName, ""));
  };
  add(CheckpointVerb::kCreate, "create", "Keep weights and state of the open step, on all nodes");
  add(CheckpointVerb::kList, "list", "Checkpoints that all nodes have");
  add(CheckpointVerb::kDelete, "delete", "Free a checkpoint's space on all nodes");
  add(CheckpointVerb::kRestore, "restore", "Go back to a checkpoint; workers reopen the job");
}

void AddDoctor(CLI::App* command, Options* options) {
  CLI::Option* local =
      command->add_flag("--local", options->local, "This host only; asks no daemon");
  command
      ->add_option("--config", options->config,
                   "With --local: also what the daemon of this configuration needs here")
      ->type_name("FILE")
      ->needs(local)
      ->check(CLI::Validator(CheckNotEmpty, ""));
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
  CLI::App* plan = add(Command::kPlan, "plan", "Where a job's state is and what a step moves");
  plan->add_option("job", options->job, "Name of the job")->required()->type_name("JOB");
  CLI::App* remove = add(Command::kDelete, "delete", "Free a job on all nodes");
  remove->add_option("job", options->job, "Name of the job")->required()->type_name("JOB");
  remove->add_flag("--force", options->force, "Also when workers have open sessions");
  AddCheckpoint(add(Command::kCheckpoint, "checkpoint", "Named checkpoints of a job"), options);
  AddDoctor(add(Command::kDoctor, "doctor", "What is wrong with hosts and network, and the fixes"),
            options);
  AddImport(add(Command::kImport, "import", "Load a job's weights from safetensors"), options);
  AddExport(add(Command::kExport, "export", "Write a job's weights as safetensors"), options);
}

}  // namespace

namespace {

// Where a command should be there is a word that is none: what to say about it; else empty.
std::string UnknownCommandOf(const CLI::App& app) {
  const CLI::App* place = &app;
  while (!place->get_subcommands().empty()) place = place->get_subcommands().front();
  std::vector<std::string> choices;
  for (const CLI::App* choice : place->get_subcommands(nullptr)) {
    choices.push_back(choice->get_name());
  }
  if (choices.empty()) return "";  // a command was found; something else is wrong
  const std::vector<std::string> words = app.remaining(true);
  const auto word = std::find_if(words.begin(), words.end(),
                                 [](const std::string& each) { return !each.starts_with('-'); });
  return word == words.end() ? "" : UnknownCommand(Printable(*word), choices);
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
  AddTls(&app, &options->tls);
  std::string watch_text;  // stays empty when no number is given
  CLI::Option* watch =
      app.add_option("-w,--watch", watch_text, "Repeat every SECONDS (default 2) until Ctrl-C")
          ->expected(0, 1)
          ->check(CLI::Range(0.1, 86400.0))
          ->type_name("[SECONDS]");
  AddCommands(&app, options);
  try {
    app.parse(argc, argv);
    options->timeout_given = app.count("--timeout-ms") > 0;
    if (watch->count() > 0) {
      if (options->command != Command::kStatus && options->command != Command::kJobs &&
          options->command != Command::kHealth) {
        throw CLI::ValidationError("--watch", "can be used with status, jobs and health");
      }
      options->watch_s = watch_text.empty() ? kDefaultWatchSeconds : std::stod(watch_text);
    }
  } catch (const CLI::ParseError& error) {
    if (const std::string word = UnknownCommandOf(app); !word.empty()) {
      std::cerr << "luwuctl: " << word << "\nRun with --help for more information.\n";
      return kExitUsage;
    }
    return app.exit(error, std::cout, std::cerr) == 0 ? kExitOk : kExitUsage;
  }
  if (options->endpoints.empty()) options->endpoints = {kDefaultEndpoint};
  StatusOr<rpc::Credentials> credentials = rpc::MakeCredentials(options->tls);
  if (!credentials.ok()) {
    std::cerr << "luwuctl: " << Printable(MessageOf(credentials.status())) << "\n";
    return kExitUsage;
  }
  options->credentials = *std::move(credentials);
  return std::nullopt;
}

}  // namespace luwu::cli
