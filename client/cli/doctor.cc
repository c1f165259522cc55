#include "client/cli/doctor.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "client/cli/doctor_cluster.h"
#include "client/cli/doctor_config.h"
#include "client/cli/place_checks.h"
#include "client/cli/table.h"
#include "common/doctor/host_checks.h"
#include "common/rpc/status_json.h"

namespace luwu::cli {
namespace {

using doctor::Severity;
using doctor::Topic;

constexpr char kHere[] = "here";

const char* WordOf(Severity severity) {
  return severity == Severity::kErr ? "ERR" : severity == Severity::kWarn ? "WARN" : "OK";
}

std::string SeverityName(Severity severity) { return std::string("SEVERITY_") + WordOf(severity); }

doctor::Findings CheckPlaces(const DoctorConfig& config) {
  doctor::Findings findings;
  findings.push_back(CheckPort(Topic::kControlPort, LookAtPort(config.control_address)));
  if (!config.data_address.empty()) {
    findings.push_back(CheckPort(Topic::kDataPort, LookAtPort(config.data_address)));
  }
  if (!config.shm_path.empty()) findings.push_back(CheckShmSocket(LookAtSocket(config.shm_path)));
  if (!config.storage_path.empty()) {
    findings.push_back(
        CheckDirectory(LookAtDirectory(config.storage_path, config.storage_budget_bytes)));
  }
  return findings;
}

// As a trainer's host; with a configuration as the host of that daemon.
DoctorRows ExamineHost(const std::string& config_path) {
  doctor::HostNeeds needs;
  doctor::Findings findings;
  DoctorConfig config;
  if (!config_path.empty()) {
    needs.daemon = true;
    if (StatusOr<DoctorConfig> read = ReadDoctorConfig(config_path); read.ok()) {
      config = *std::move(read);
      needs.budget_bytes = config.memory_budget_bytes;
      findings = CheckPlaces(config);
      findings.insert(findings.begin(), doctor::Ok(Topic::kConfig, "it is node " + config.node));
    } else {
      findings.push_back(doctor::Err(Topic::kConfig, MessageOf(read.status()),
                                     "luwud --check-config --config FILE names every error"));
    }
  }
  const doctor::Findings host = doctor::CheckHost(doctor::GatherHostFacts(config.rdma), needs);
  findings.insert(findings.begin(), host.begin(), host.end());
  DoctorRows rows;
  for (const doctor::Finding& finding : findings) rows.push_back(RowOf(kHere, finding));
  return rows;
}

void Print(const Options& options, const DoctorRows& rows) {
  const std::string text =
      options.json ? rpc::JsonText(DoctorJson(rows), 2) + "\n" : DoctorText(rows);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

std::string DoctorText(const DoctorRows& rows) {
  const auto count = [&rows](Severity severity) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const DoctorRow& row) { return row.severity == severity; });
  };
  Table table({"WHERE", "SEVERITY", "CHECK", "FINDING"});
  for (const DoctorRow& row : rows) {
    table.AddRow({row.where, WordOf(row.severity), row.name, row.summary});
    if (!row.hint.empty()) table.AddRow({"", "", "", "fix: " + row.hint});
  }
  return fmt::format("{} checks, {} ERR, {} WARN\n\n{}", rows.size(), count(Severity::kErr),
                     count(Severity::kWarn), table.Render());
}

nlohmann::ordered_json DoctorJson(const DoctorRows& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DoctorRow& row : rows) {
    list.push_back({{"where", row.where},
                    {"name", row.name},
                    {"severity", SeverityName(row.severity)},
                    {"summary", row.summary},
                    {"hint", row.hint}});
  }
  return {{"overall", SeverityName(WorstOf(rows))}, {"findings", std::move(list)}};
}

int Doctor(const Options& options, StopSignals* stop) {
  DoctorRows rows = ExamineHost(options.config);
  bool any_answers = options.local;
  if (!options.local) {
    const std::vector<NodeFacts> nodes = AskCluster(options, stop);
    any_answers = std::any_of(nodes.begin(), nodes.end(),
                              [](const NodeFacts& node) { return node.diagnosis.ok(); });
    const DoctorRows cluster = CheckCluster(nodes);
    rows.insert(rows.end(), cluster.begin(), cluster.end());
  }
  Print(options, rows);
  if (!any_answers) return kExitFailure;
  return WorstOf(rows) == Severity::kErr ? kExitUnhealthy : kExitOk;
}

}  // namespace luwu::cli
