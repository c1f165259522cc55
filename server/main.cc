// luwud: flags, configuration, run until a signal.
//
// Exit status: 0 after a clean stop, 1 when the daemon cannot run (a port in use), 2 for a wrong
// command line or configuration, 3 when a second signal or a stop that hung cut it short. Errors
// are one or more lines on stderr, each beginning "luwud: ".

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/base/tls_files.h"
#include "common/config/quantity.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/metrics/metric_list.h"
#include "server/ops/process.h"
#include "server/ops/service_reporter.h"
#include "server/ops/signals.h"

namespace {

constexpr int kExitRuntime = 1;
constexpr int kExitUsage = 2;
constexpr unsigned kDrainSeconds = 15;

struct Flags {
  std::string config;
  luwu::QuickStart quick;
  std::string memory;
  std::string log_level;
  std::optional<int> ready_fd;
  bool check_config = false;
  bool list_metrics = false;
};

void Declare(CLI::App& app, Flags* flags) {
  app.set_version_flag("--version", "luwud " LUWU_VERSION);
  auto* config = app.add_option("-c,--config", flags->config, "Configuration file (TOML)");
  auto* listen = app.add_option("--listen", flags->quick.listen,
                                "Without a file: a cluster of this node only, control plane here")
                     ->excludes(config);
  auto* memory =
      app.add_option("--memory", flags->memory, "With --listen: memory budget (\"4GiB\")");
  listen->needs(memory);
  memory->needs(listen);
  app.add_option("--data", flags->quick.data, "With --listen: tcp data plane (default: next port)")
      ->needs(listen);
  app.add_option("--shm", flags->quick.shm,
                 "With --listen: Unix socket of the shared-memory data plane")
      ->needs(listen);
  app.add_option("--data-dir", flags->quick.data_dir,
                 "With --listen: keep durable points, checkpoints and spilled state here")
      ->needs(listen)
      ->check([](const std::string& folder) {
        return folder.empty() ? std::string("is empty: name a folder") : std::string();
      });
  app.add_option("--log-level", flags->log_level, "debug, info, warning, error or off")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  app.add_flag("--check-config", flags->check_config,
               "Print the effective configuration as TOML and exit");
  app.add_flag("--list-metrics", flags->list_metrics,
               "Print every metric of the Prometheus page as Markdown and exit");
  app.add_option("--ready-fd", flags->ready_fd,
                 "When serving, write one line of JSON to this file descriptor and close it")
      ->check(CLI::NonNegativeNumber);
}

luwu::StatusOr<luwu::DaemonConfig> MakeConfig(Flags* flags) {
  luwu::DaemonConfig config;
  if (!flags->config.empty()) {
    ASSIGN_OR_RETURN(config, luwu::LoadConfig(flags->config));
  } else if (!flags->quick.listen.empty()) {
    const luwu::StatusOr<uint64_t> memory = luwu::ParseBytes(flags->memory);
    if (!memory.ok()) return luwu::Annotate(memory.status(), "--memory");
    flags->quick.memory_bytes = *memory;
    ASSIGN_OR_RETURN(config, luwu::QuickStartConfig(flags->quick));
  } else {
    return luwu::Error(luwu::ErrorCode::kInvalidArgument,
                       "give --config FILE, or --listen HOST:PORT and --memory SIZE for a single "
                       "node; --help tells more");
  }
  if (!flags->log_level.empty()) luwu::ParseLogLevel(flags->log_level, &config.log_level);
  return config;
}

int Fail(const luwu::Status& status, int exit_status) {
  std::istringstream lines(luwu::MessageOf(status));
  for (std::string line; std::getline(lines, line);) std::cerr << "luwud: " << line << "\n";
  return exit_status;
}

// The line is short enough for one write to a pipe.
bool WriteReady(int fd, const luwu::Daemon& daemon) {
  const luwu::Node& node = daemon.config().node();
  const nlohmann::json ready = {
      {"pid", ::getpid()},
      {"node", node.name},
      {"control", node.control_address},
      {"control_port", daemon.control_port()},
      {"data", node.data_address},
      {"data_port", daemon.data_port()},
      {"metrics_port", daemon.metrics_port()},
      {"shm_path", node.shm_path},
  };
  const std::string line = ready.dump() + "\n";
  const bool written = ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  ::close(fd);
  return written;
}

// What can change while the daemon runs is the log level; the rest waits for the next start.
void Reload(const std::string& path, const Flags& flags, const luwu::DaemonConfig& running) {
  luwu::StatusOr<luwu::DaemonConfig> fresh = luwu::LoadConfig(path);
  if (!fresh.ok()) {
    luwu::LogError("reload_refused", "file={} why=\"{}\"", path, luwu::MessageOf(fresh.status()));
    return;
  }
  if (!flags.log_level.empty()) luwu::ParseLogLevel(flags.log_level, &fresh->log_level);
  luwu::SetLogLevel(fresh->log_level);
  luwu::LogInfo("reloaded", "file={} log_level={}", path, luwu::LogLevelName(fresh->log_level));
  fresh->log_level = running.log_level;
  if (!(*fresh == running)) {
    luwu::LogWarning("reload_incomplete",
                     "file={} why=\"more than [log] level has changed\" "
                     "action=\"restart luwud for the rest\"",
                     path);
  }
}

// Returns the signal that ends the daemon.
int ServeUntilSignal(const Flags& flags, const luwu::DaemonConfig& config,
                     luwu::ServiceReporter* reporter) {
  while (true) {
    const int signal = luwu::WaitForSignal();
    if (signal != SIGHUP || flags.config.empty()) return signal;
    reporter->Reloading();
    Reload(flags.config, flags, config);
    reporter->Reloaded();
  }
}

int Serve(const luwu::DaemonConfig& config, const Flags& flags, luwu::ServiceReporter* reporter) {
  const std::optional<int> ready_fd = flags.ready_fd;
  luwu::StatusOr<std::unique_ptr<luwu::Daemon>> daemon = luwu::Daemon::Start(config);
  if (!daemon.ok()) return Fail(daemon.status(), kExitRuntime);
  if (ready_fd && !WriteReady(*ready_fd, **daemon)) {
    return Fail(luwu::Error(luwu::ErrorCode::kInvalidArgument,
                            "--ready-fd {}: the descriptor cannot be written to", *ready_fd),
                kExitUsage);
  }
  reporter->Serving([raw = daemon->get()] { return raw->Look(); });
  const std::string reason =
      fmt::format("SIG{}", ::sigabbrev_np(ServeUntilSignal(flags, config, reporter)));
  const luwu::StopWatch watch(kDrainSeconds);
  reporter->Stopping(reason);
  (*daemon)->Stop(reason);
  daemon->reset();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  luwu::BlockTerminationSignals();
  luwu::TuneAllocator();
  luwu::RaiseFileLimit();
  // gRPC's own lines would repeat our errors in its words.
  ::setenv("GRPC_VERBOSITY", "NONE", 0);

  Flags flags;
  CLI::App app("LuWu daemon: owns this node's slice of every job's weights and optimizer state.",
               "luwud");
  Declare(app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return Fail(
        luwu::Error(luwu::ErrorCode::kInvalidArgument, "{}; --help tells more", error.what()),
        kExitUsage);
  }
  if (flags.list_metrics) {
    std::cout << luwu::MetricsMarkdown();
    return 0;
  }
  const luwu::StatusOr<luwu::DaemonConfig> config = MakeConfig(&flags);
  if (!config.ok()) return Fail(config.status(), kExitUsage);
  if (flags.check_config) {
    const luwu::Status tls = luwu::CheckTlsFiles(config->tls.files);
    if (!tls.ok()) return Fail(tls, kExitUsage);
    std::cout << luwu::DumpConfig(*config);
    return 0;
  }
  luwu::InitLog(config->log_level, config->journald);
  luwu::ServiceReporter reporter(luwu::ServiceManager::FromEnvironment());
  return Serve(*config, flags, &reporter);
}
