#include "server/config_security.h"

#include <algorithm>

namespace luwu {
namespace {

constexpr U64Range kCountRange = {.min = 1, .max = 1'000'000};
constexpr U64Range kMemoryRange = {.min = 1, .max = uint64_t{1} << 50};
constexpr U64Range kRefreshRange = {.min = 1'000, .max = 86'400'000};

const std::vector<std::string> kRoles = {"observer", "trainer", "operator", "daemon"};

void ReadTls(ConfigReader& table, TlsConfig* tls) {
  tls->files = {.certificate = table.GetString("certificate", ""),
                .key = table.GetString("key", ""),
                .ca = table.GetString("ca", "")};
  for (const auto& [key, path] : {std::pair{"certificate", &tls->files.certificate},
                                  {"key", &tls->files.key},
                                  {"ca", &tls->files.ca}}) {
    if (!tls->files.empty() && path->empty()) {
      table.AddError(key, "is missing; TLS needs certificate, key and ca");
    } else if (!path->empty() && path->front() != '/') {
      table.AddError(key, fmt::format("'{}' is not an absolute path", *path));
    }
  }
  const uint64_t refresh_ms = table.GetDurationMs("refresh", kRefreshRange, 60'000);
  tls->refresh_s = static_cast<uint32_t>(refresh_ms / 1000);
}

Quota ReadQuota(ConfigReader& table, Role role) {
  if (role == Role::kTrainer || role == Role::kOperator) {
    return {.sessions = table.GetU64("sessions_max", kCountRange, 0),
            .slots = table.GetU64("slots_max", kCountRange, 0),
            .memory_bytes = table.GetBytes("memory_max", kMemoryRange, 0)};
  }
  for (const char* key : {"sessions_max", "slots_max", "memory_max"}) {
    if (!table.Has(key)) continue;
    table.AddError(key, fmt::format("limits trainers and operators, and this is role \"{}\"; "
                                    "remove it",
                                    RoleName(role)));
  }
  return {};
}

AccessRule ReadRule(ConfigReader& table) {
  AccessRule rule;
  rule.identity = table.GetString("identity");
  if (!rule.identity.empty()) {
    const Status status = CheckIdentity(rule.identity);
    if (!status.ok()) table.AddError("identity", MessageOf(status));
  }
  const std::string role = table.GetChoice("role", kRoles);
  rule.role = static_cast<Role>(std::find(kRoles.begin(), kRoles.end(), role) - kRoles.begin());
  rule.jobs = table.GetStringList("jobs");
  for (const std::string& pattern : rule.jobs) {
    const Status status = CheckJobPattern(pattern);
    if (!status.ok()) table.AddError("jobs", MessageOf(status));
  }
  const bool daemon = rule.role == Role::kDaemon;
  if (daemon && IsLocalIdentity(rule.identity)) {
    table.AddError("identity", "daemons call each other with certificates, not as users");
  }
  if (daemon && table.Has("jobs")) {
    table.AddError("jobs", "a daemon takes part in every job; remove it");
  } else if (!daemon && !table.Has("jobs")) {
    table.AddError("jobs", "is missing; name the jobs, or write [\"*\"] for all");
  }
  rule.quota = ReadQuota(table, rule.role);
  return rule;
}

void CheckLocal(ConfigReader& root, const DaemonConfig& config) {
  const auto is_local = [](const AccessRule& rule) { return IsLocalIdentity(rule.identity); };
  const bool any = std::any_of(config.access.begin(), config.access.end(), is_local);
  if (config.local_socket.empty()) {
    if (any) root.AddError("access", "users of this host need [local] socket");
    return;
  }
  if (config.local_socket.front() != '/') {
    root.AddError("local", fmt::format("socket '{}' is not an absolute path", config.local_socket));
  }
  if (config.tls.files.empty()) {
    root.AddError("local", "without [tls] everybody may do everything at the control port; add it");
  }
  if (!any) root.AddError("local", "no [[access]] entry is a user or group (\"uid:1000\")");
}

void CheckTogether(ConfigReader& root, const DaemonConfig& config) {
  CheckLocal(root, config);
  const auto& access = config.access;
  if (config.tls.files.empty()) {
    if (!access.empty()) {
      root.AddError("access", "without [tls] nobody shows who they are; add [tls], or remove it");
    }
    return;
  }
  if (access.empty()) {
    root.AddError("tls", "without [[access]] nobody may do anything; add an entry for each caller");
  }
  const auto is_daemon = [](const AccessRule& rule) { return rule.role == Role::kDaemon; };
  if (config.nodes.size() > 1 && std::none_of(access.begin(), access.end(), is_daemon)) {
    root.AddError("access",
                  "no entry has role \"daemon\", so the daemons refuse each other's calls");
  }
  for (size_t i = 0; i < access.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (access[i].identity != access[k].identity) continue;
      root.AddError("access",
                    fmt::format("'{}' has two entries, of which only the first would count",
                                access[i].identity));
    }
  }
}

}  // namespace

void ReadSecurity(ConfigReader& root, DaemonConfig* config) {
  ConfigReader tls = root.Table("tls");
  ReadTls(tls, &config->tls);
  ConfigReader local = root.Table("local");
  config->local_socket = local.GetString("socket", "");
  for (ConfigReader& table : root.Tables("access")) config->access.push_back(ReadRule(table));
  CheckTogether(root, *config);
}

std::string DumpSecurity(const DaemonConfig& config) {
  const TlsFiles& files = config.tls.files;
  if (files.empty()) return "";
  std::string out = fmt::format("\n[tls]\ncertificate = {}\nkey = {}\nca = {}\nrefresh = \"{}s\"\n",
                                Quoted(files.certificate), Quoted(files.key), Quoted(files.ca),
                                config.tls.refresh_s);
  if (!config.local_socket.empty()) {
    out += fmt::format("\n[local]\nsocket = {}\n", Quoted(config.local_socket));
  }
  for (const AccessRule& rule : config.access) {
    out += fmt::format("\n[[access]]\nidentity = {}\nrole = \"{}\"\n", Quoted(rule.identity),
                       RoleName(rule.role));
    if (rule.role == Role::kDaemon) continue;
    std::vector<std::string> jobs;
    for (const std::string& job : rule.jobs) jobs.push_back(Quoted(job));
    out += fmt::format("jobs = [{}]\n", fmt::join(jobs, ", "));
    const Quota& quota = rule.quota;
    if (quota.sessions != 0) out += fmt::format("sessions_max = {}\n", quota.sessions);
    if (quota.slots != 0) out += fmt::format("slots_max = {}\n", quota.slots);
    if (quota.memory_bytes != 0) out += fmt::format("memory_max = {}\n", quota.memory_bytes);
  }
  return out;
}

}  // namespace luwu
