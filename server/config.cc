#include "server/config.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "common/config/config_reader.h"
#include "server/config_security.h"

namespace luwu {
namespace {

constexpr U64Range kBudgetRange = {.min = 16 * kMiB, .max = uint64_t{1} << 46};
constexpr U64Range kThreadsRange = {.min = 0, .max = 1024};
constexpr U64Range kHeartbeatRange = {.min = 10, .max = 600'000};
constexpr U64Range kLeaseRange = {.min = 50, .max = 3'600'000};
constexpr U64Range kUidRange = {.min = 0, .max = 0xfffffffe};  // -1 is no user
constexpr U64Range kWeightRange = {.min = 0, .max = kNodeWeightMax};
constexpr size_t kShmPathMax = 107;  // sun_path without its terminator

constexpr U64Range kStorageBudgetRange = {.min = 0, .max = uint64_t{1} << 50};
constexpr U64Range kScrubRange = {.min = 0, .max = uint64_t{1} << 40};
constexpr U64Range kPercentRange = {.min = 1, .max = 100};

const std::vector<std::string> kEngines = {"auto", "extents", "rocksdb_values"};
constexpr U64Range kPortRange = {.min = 0, .max = 254};
constexpr U64Range kGidIndexRange = {.min = 0, .max = 65535};
constexpr uint64_t kGidIndexAuto = kGidIndexRange.max + 1;  // when the key is not there
constexpr U64Range kMtuRange = {.min = 0, .max = 4096};

const std::vector<std::string> kNumaUses = {"auto", "off"};
const std::vector<std::string> kRdmaUses = {"auto", "on", "off"};
const std::vector<std::string> kRdmaModes = {"event", "busy"};
const std::vector<std::string> kLevels = {"debug", "info", "warning", "error", "off"};

Status CheckShmPath(const std::string& path) {
  if (path.empty()) return OkStatus();
  if (path.front() != '/') {
    return Error(ErrorCode::kInvalidArgument, "'{}' is not an absolute path", path);
  }
  if (path.size() > kShmPathMax) {
    return Error(ErrorCode::kInvalidArgument, "a socket path has at most {} bytes, this one has {}",
                 kShmPathMax, path.size());
  }
  return OkStatus();
}

// Port 0 means "any free port", which only a daemon without peers can tell its clients about. The
// addresses are what others dial, so "any interface" is none.
Status CheckAddress(const std::string& address, bool port_zero_allowed) {
  ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  if (parsed.host == "0.0.0.0" || parsed.host == "[::]" || parsed.host == "*") {
    return Error(ErrorCode::kInvalidArgument,
                 "'{}' names no host; write the address that clients and other daemons dial",
                 address);
  }
  if (parsed.port == 0 && !port_zero_allowed) {
    return Error(ErrorCode::kInvalidArgument,
                 "port 0 is allowed only while [[nodes]] has one entry; write a port number");
  }
  return OkStatus();
}

std::vector<Node> ReadNodes(ConfigReader& root) {
  std::vector<ConfigReader> tables = root.Tables("nodes");
  if (tables.empty()) {
    root.AddError("nodes",
                  "no [[nodes]] entry; list every daemon of the cluster, this one included");
  }
  const bool single = tables.size() == 1;
  std::vector<Node> nodes;
  for (ConfigReader& table : tables) {
    Node node;
    node.name = table.GetString("name");
    node.weight = static_cast<uint32_t>(table.GetU64("weight", kWeightRange, 1));
    node.control_address = table.GetString("control");
    node.data_address = table.GetString("data", "");
    node.shm_path = table.GetString("shm", "");
    if (!node.control_address.empty()) {
      const Status status = CheckAddress(node.control_address, single);
      if (!status.ok()) table.AddError("control", MessageOf(status));
    }
    if (!node.data_address.empty()) {
      const Status status = CheckAddress(node.data_address, single);
      if (!status.ok()) table.AddError("data", MessageOf(status));
    }
    if (const Status status = CheckShmPath(node.shm_path); !status.ok()) {
      table.AddError("shm", MessageOf(status));
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "[::]"; }

// Whether only one of them can be listened on.
bool SameAddress(const std::string& control, const std::string& data) {
  const StatusOr<HostPort> one = ParseHostPort(control);
  const StatusOr<HostPort> other = ParseHostPort(data);
  if (!one.ok() || !other.ok() || one->port == 0 || one->port != other->port) return false;
  return one->host == other->host || IsWildcard(one->host) || IsWildcard(other->host);
}

// ValidateNodes, which knows no port 0.
Status CheckNodes(std::vector<Node> nodes) {
  for (Node& node : nodes) {
    if (SameAddress(node.control_address, node.data_address)) {
      return Error(
          ErrorCode::kInvalidArgument,
          "node '{}': control {} and data {} are one address; give them ports of their own",
          node.name, node.control_address, node.data_address);
    }
    for (std::string* address : {&node.control_address, &node.data_address}) {
      if (address->ends_with(":0")) address->back() = '1';
    }
  }
  return ValidateNodes(nodes);
}

std::optional<uint32_t> IndexOf(const std::vector<Node>& nodes, const std::string& name) {
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].name == name) return i;
  }
  return std::nullopt;
}

std::string NamesOf(const std::vector<Node>& nodes) {
  std::string names;
  for (const Node& node : nodes) names += (names.empty() ? "" : ", ") + node.name;
  return names;
}

void ReadSession(ConfigReader& root, DaemonConfig* config) {
  ConfigReader session = root.Table("session");
  for (const uint64_t uid : session.GetU64List("shm_allowed_uids", kUidRange)) {
    config->shm_allowed_uids.push_back(static_cast<uint32_t>(uid));
  }
  config->heartbeat_ms =
      static_cast<uint32_t>(session.GetDurationMs("heartbeat_ms", kHeartbeatRange, 5000));
  config->lease_ms = static_cast<uint32_t>(session.GetDurationMs("lease_ms", kLeaseRange, 15000));
  if (config->lease_ms < 2 * config->heartbeat_ms) {
    session.AddError("lease_ms", fmt::format("{} ms is less than two heartbeats of {} ms, so that "
                                             "one late heartbeat would end a session",
                                             config->lease_ms, config->heartbeat_ms));
  }
}

Status CheckDataPath(const std::string& path) {
  if (path.empty() || path.front() == '/') return OkStatus();
  return Error(ErrorCode::kInvalidArgument, "'{}' is not an absolute path", path);
}

void ReadStorage(ConfigReader& root, DaemonConfig* config) {
  ConfigReader table = root.Table("storage");
  StorageConfig& storage = config->storage;
  storage.path = table.GetString("path", "");
  if (const Status status = CheckDataPath(storage.path); !status.ok()) {
    table.AddError("path", MessageOf(status));
  }
  const std::string engine = table.GetChoice("engine", kEngines, "auto");
  for (size_t i = 0; i < kEngines.size(); ++i) {
    if (kEngines[i] == engine) storage.engine = static_cast<persist::Engine>(i);
  }
  storage.budget_bytes = table.GetBytes("budget", kStorageBudgetRange, 0);
  storage.scrub_bytes_per_s = table.GetBytes("scrub_rate", kScrubRange, 0);
  const auto percent = [&](const std::string& key, uint32_t usual) {
    return static_cast<uint32_t>(table.GetU64(key, kPercentRange, usual));
  };
  storage.warn_percent = percent("warn_percent", storage.warn_percent);
  storage.stop_checkpoints_percent =
      percent("stop_checkpoints_percent", storage.stop_checkpoints_percent);
  storage.stop_percent = percent("stop_percent", storage.stop_percent);
  if (storage.warn_percent > storage.stop_checkpoints_percent ||
      storage.stop_checkpoints_percent > storage.stop_percent) {
    table.AddError(
        "warn_percent",
        fmt::format("warn_percent {}, stop_checkpoints_percent {} and stop_percent {} "
                    "must not fall",
                    storage.warn_percent, storage.stop_checkpoints_percent, storage.stop_percent));
  }
}

void ReadRdma(ConfigReader& root, DaemonConfig* config) {
  ConfigReader table = root.Table("rdma");
  transport::VerbsOptions& rdma = config->rdma;
  const std::string use = table.GetChoice("use", kRdmaUses, "auto");
  for (size_t i = 0; i < kRdmaUses.size(); ++i) {
    if (kRdmaUses[i] == use) rdma.use = static_cast<transport::VerbsUse>(i);
  }
  rdma.device = table.GetString("device", "");
  rdma.port = static_cast<uint32_t>(table.GetU64("port", kPortRange, 0));
  const uint64_t gid_index = table.GetU64("gid_index", kGidIndexRange, kGidIndexAuto);
  rdma.gid_index = gid_index == kGidIndexAuto ? -1 : static_cast<int32_t>(gid_index);
  rdma.mtu = static_cast<uint32_t>(table.GetU64("mtu", kMtuRange, 0));
  const auto* end = std::end(transport::kVerbsMtus);
  if (rdma.mtu != 0 && std::find(std::begin(transport::kVerbsMtus), end, rdma.mtu) == end) {
    table.AddError("mtu",
                   fmt::format("{} is none; choose 256, 512, 1024, 2048, 4096, or 0 for that "
                               "of the port",
                               rdma.mtu));
  }
  rdma.busy_poll = table.GetChoice("mode", kRdmaModes, "event") == "busy";
}

// The page has no login, so nobody but this host may reach it.
Status CheckMetricsAddress(const std::string& address) {
  if (address.empty()) return OkStatus();
  ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  in_addr host = {};
  const bool loopback =
      parsed.host == "[::1]" || (::inet_pton(AF_INET, parsed.host.c_str(), &host) == 1 &&
                                 (ntohl(host.s_addr) >> 24) == IN_LOOPBACKNET);
  if (loopback) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "'{}' is not a loopback address; the metrics page has no login: write "
               "127.0.0.1:{} and let Prometheus or a proxy on this host read it",
               address, parsed.port);
}

void ReadMetrics(ConfigReader& root, DaemonConfig* config) {
  ConfigReader table = root.Table("metrics");
  config->metrics_listen = table.GetString("listen", "");
  if (const Status status = CheckMetricsAddress(config->metrics_listen); !status.ok()) {
    table.AddError("listen", MessageOf(status));
  }
}

StatusOr<DaemonConfig> FromReader(ConfigReader root) {
  DaemonConfig config;
  ConfigReader node = root.Table("node");
  const std::string name = node.GetString("name");
  config.nodes = ReadNodes(root);
  config.memory_budget_bytes = root.Table("memory").GetBytes("budget", kBudgetRange);
  ConfigReader optimizer = root.Table("optimizer");
  config.optimizer_threads = static_cast<uint32_t>(optimizer.GetU64("threads", kThreadsRange, 0));
  config.optimizer_pin = optimizer.GetBool("pin", false);
  config.optimizer_numa = optimizer.GetChoice("numa", kNumaUses, "auto") == "auto";
  ReadSession(root, &config);
  ReadStorage(root, &config);
  ReadRdma(root, &config);
  ReadMetrics(root, &config);
  ReadSecurity(root, &config);
  ConfigReader log = root.Table("log");
  ParseLogLevel(log.GetChoice("level", kLevels, "info"), &config.log_level);
  config.journald = log.GetBool("journald", false);
  RETURN_IF_ERROR(root.Finish());

  // Only now are the values worth comparing with each other.
  if (const std::optional<uint32_t> self = IndexOf(config.nodes, name)) {
    config.self = *self;
  } else {
    node.AddError("name", fmt::format("'{}' is not in [[nodes]], which has: {}", name,
                                      NamesOf(config.nodes)));
  }
  if (const Status status = CheckNodes(config.nodes); !status.ok()) {
    root.AddError("nodes", MessageOf(status));
  }
  RETURN_IF_ERROR(root.Finish());
  return config;
}

std::string DefaultShmPath(uint16_t port) {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder = runtime != nullptr && runtime[0] == '/' ? runtime : "/tmp";
  // A port that is chosen later cannot tell two daemons apart; the process id can.
  const std::string id = port != 0 ? fmt::format("{}", port) : fmt::format("p{}", ::getpid());
  return fmt::format("{}/luwud-{}-{}.sock", folder, ::getuid(), id);
}

}  // namespace

std::string HostPort::text() const { return fmt::format("{}:{}", host, port); }

StatusOr<HostPort> ParseHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Error(ErrorCode::kInvalidArgument, "'{}' is not of the form host:port", address);
  }
  HostPort out;
  out.host = address.substr(0, colon);
  const bool bracketed = out.host.front() == '[' && out.host.back() == ']';
  if (!bracketed && out.host.find(':') != std::string::npos) {
    return Error(ErrorCode::kInvalidArgument,
                 "'{}' is not of the form host:port; write an IPv6 address as [address]:port",
                 address);
  }
  const char* first = address.data() + colon + 1;
  const char* last = address.data() + address.size();
  const auto [end, error] = std::from_chars(first, last, out.port);
  if (first == last || error != std::errc() || end != last) {
    return Error(ErrorCode::kInvalidArgument, "'{}' has no port number from 0 to 65535", address);
  }
  return out;
}

StatusOr<DaemonConfig> ParseConfig(std::string_view text, const std::string& source_name) {
  ASSIGN_OR_RETURN(ConfigReader root, ConfigReader::Parse(text, source_name));
  return FromReader(std::move(root));
}

StatusOr<DaemonConfig> LoadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(ConfigReader root, ConfigReader::ReadFile(path));
  return FromReader(std::move(root));
}

StatusOr<DaemonConfig> QuickStartConfig(const QuickStart& options) {
  RETURN_IF_ERROR(Annotate(CheckAddress(options.listen, true), "--listen"));
  ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  Node node;
  node.name = "local";
  node.control_address = options.listen;
  if (!options.data.empty()) {
    RETURN_IF_ERROR(Annotate(CheckAddress(options.data, true), "--data"));
    node.data_address = options.data;
  } else {
    if (listen.port == 65535) {
      return Error(ErrorCode::kInvalidArgument,
                   "--listen: there is no port after 65535 for the data plane; give --data too");
    }
    HostPort data = listen;
    if (data.port != 0) ++data.port;
    node.data_address = data.text();
  }
  node.shm_path = options.shm.empty() ? DefaultShmPath(listen.port) : options.shm;
  RETURN_IF_ERROR(Annotate(CheckShmPath(node.shm_path), "--shm"));
  if (options.memory_bytes < kBudgetRange.min || options.memory_bytes > kBudgetRange.max) {
    return Error(ErrorCode::kInvalidArgument, "--memory: {} is not between {} and {}",
                 HumanBytes(options.memory_bytes), HumanBytes(kBudgetRange.min),
                 HumanBytes(kBudgetRange.max));
  }
  DaemonConfig config;
  config.nodes.push_back(std::move(node));
  config.memory_budget_bytes = options.memory_bytes;
  if (!options.data_dir.empty()) {
    std::error_code error;
    config.storage.path = std::filesystem::absolute(options.data_dir, error).lexically_normal();
    if (error) {
      return Error(ErrorCode::kInvalidArgument, "--data-dir {}: {}", options.data_dir,
                   error.message());
    }
  }
  RETURN_IF_ERROR(Annotate(CheckNodes(config.nodes), "command line"));
  return config;
}

std::string_view LogLevelName(LogLevel level) { return kLevels[static_cast<size_t>(level)]; }

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string_view EngineName(persist::Engine engine) {
  return kEngines[static_cast<size_t>(engine)];
}

std::string DumpConfig(const DaemonConfig& config) {
  std::string out = fmt::format(
      "[node]\nname = {}\n\n[memory]\nbudget = {}  # {}\n\n[optimizer]\nthreads = {}\npin = {}\n"
      "numa = \"{}\"\n\n[session]\nheartbeat_ms = {}\nlease_ms = {}\nshm_allowed_uids = "
      "[{}]\n\n[log]\nlevel = "
      "\"{}\"\njournald = {}\n",
      Quoted(config.node().name), config.memory_budget_bytes,
      HumanBytes(config.memory_budget_bytes), config.optimizer_threads, config.optimizer_pin,
      kNumaUses[config.optimizer_numa ? 0 : 1], config.heartbeat_ms, config.lease_ms,
      fmt::join(config.shm_allowed_uids, ", "), LogLevelName(config.log_level), config.journald);
  const StorageConfig& storage = config.storage;
  out += fmt::format(
      "\n[storage]\npath = {}\nengine = \"{}\"\nbudget = {}\nscrub_rate = {}\nwarn_percent = {}\n"
      "stop_checkpoints_percent = {}\nstop_percent = {}\n",
      Quoted(storage.path), EngineName(storage.engine), storage.budget_bytes,
      storage.scrub_bytes_per_s, storage.warn_percent, storage.stop_checkpoints_percent,
      storage.stop_percent);
  const transport::VerbsOptions& rdma = config.rdma;
  out += fmt::format("\n[rdma]\nuse = \"{}\"\ndevice = {}\nport = {}\nmtu = {}\nmode = \"{}\"\n",
                     kRdmaUses[static_cast<size_t>(rdma.use)], Quoted(rdma.device), rdma.port,
                     rdma.mtu, kRdmaModes[rdma.busy_poll ? 1 : 0]);
  if (rdma.gid_index >= 0) out += fmt::format("gid_index = {}\n", rdma.gid_index);
  out += fmt::format("\n[metrics]\nlisten = {}\n", Quoted(config.metrics_listen));
  out += DumpSecurity(config);
  for (const Node& node : config.nodes) {
    out += fmt::format("\n[[nodes]]\nname = {}\nweight = {}\ncontrol = {}\n", Quoted(node.name),
                       node.weight, Quoted(node.control_address));
    if (!node.data_address.empty()) out += fmt::format("data = {}\n", Quoted(node.data_address));
    if (!node.shm_path.empty()) out += fmt::format("shm = {}\n", Quoted(node.shm_path));
  }
  return out;
}

}  // namespace luwu
