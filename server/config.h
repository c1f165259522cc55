// The daemon's configuration: a typed struct, made from a TOML file or from the few flags of a
// single-node quick start. Read once at start; nothing changes afterwards. Every error names file
// and line, the key, and what is allowed. The keys are documented in deploy/config/luwud.toml.
//
// Called by main.cc and by tests, on the main thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/tls_files.h"
#include "common/config/access_rule.h"
#include "common/tensor/placement.h"
#include "common/transport/verbs/verbs_options.h"
#include "server/persist/node_storage.h"

namespace luwu {

// The data directory of this daemon; docs/DURABILITY.md.
struct StorageConfig {
  std::string path;  // absolute; empty: nothing is kept on disk
  persist::Engine engine = persist::Engine::kAuto;
  uint64_t budget_bytes = 0;  // 0: what the file system has
  uint32_t warn_percent = 85, stop_checkpoints_percent = 90, stop_percent = 95;  // of the budget
  uint64_t scrub_bytes_per_s = 0;                                                // 0: never

  bool operator==(const StorageConfig&) const = default;
};

// Of the control plane; docs/operating/security.md.
struct TlsConfig {
  TlsFiles files = {};  // empty: plain text, and everybody may do everything
  uint32_t refresh_s = 60;

  bool operator==(const TlsConfig&) const = default;
};

struct DaemonConfig {
  std::vector<Node> nodes;  // valid by ValidateNodes
  uint32_t self = 0;        // index of this daemon in `nodes`
  uint64_t memory_budget_bytes = 0;
  uint32_t optimizer_threads = 0;  // 0: one per core
  bool optimizer_pin = false;      // each of them to one CPU
  bool optimizer_numa = true;      // each of them to one NUMA node, and shards near them
  uint32_t heartbeat_ms = 5000;
  uint32_t lease_ms = 15000;
  std::vector<uint32_t> shm_allowed_uids;  // besides root and the daemon's own user
  StorageConfig storage = {};
  transport::VerbsOptions rdma = {};  // docs/operating/rdma.md
  std::string metrics_listen = {};    // "127.0.0.1:9464", always loopback; empty: no metrics
  TlsConfig tls = {};
  std::string local_socket = {};        // path of the control plane's Unix socket; empty: none
  std::vector<AccessRule> access = {};  // not empty with TLS; the first that fits a caller counts
  LogLevel log_level = LogLevel::kInfo;
  bool journald = false;

  const Node& node() const { return nodes[self]; }
  bool operator==(const DaemonConfig&) const = default;
};

// kInvalidArgument with one line per error; kNotFound or kPermission for the file itself.
StatusOr<DaemonConfig> LoadConfig(const std::string& path);
StatusOr<DaemonConfig> ParseConfig(std::string_view text, const std::string& source_name);

// The configuration of a cluster of one node, called "local".
struct QuickStart {
  std::string listen = {};  // control address "host:port"
  std::string data = {};    // empty: same host, next port
  std::string shm = {};  // empty: a socket named for the user and the port in the runtime directory
  uint64_t memory_bytes = 0;
  std::string data_dir = {};  // empty: nothing is kept on disk; made absolute
};
StatusOr<DaemonConfig> QuickStartConfig(const QuickStart& options);

// The configuration as TOML: ParseConfig gives the same struct back.
std::string DumpConfig(const DaemonConfig& config);

// A TOML basic string.
std::string Quoted(const std::string& text);

std::string_view LogLevelName(LogLevel level);
std::string_view EngineName(persist::Engine engine);  // "extents"

// "host:port" or "[v6]:port" taken apart. kInvalidArgument says what is wrong with it.
struct HostPort {
  std::string host;  // as written, brackets included
  uint16_t port = 0;
  std::string text() const;
};
StatusOr<HostPort> ParseHostPort(const std::string& address);

}  // namespace luwu
