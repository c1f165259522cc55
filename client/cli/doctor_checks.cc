#include "client/cli/doctor_checks.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "client/cli/call_error.h"

namespace luwu::cli {

using doctor::Err;
using doctor::Finding;
using doctor::Ok;
using doctor::Severity;
using doctor::Topic;
using doctor::Warn;

namespace {

constexpr int64_t kClockUsMax = 1'000'000;

std::string NameOf(const NodeFacts& node) { return node.name.empty() ? node.address : node.name; }

Finding CheckNode(const NodeFacts& node) {
  constexpr Topic kTopic = Topic::kNode;
  if (!node.diagnosis.ok()) {
    if (CodeOf(node.diagnosis.status()) == ErrorCode::kUnsupported) {
      return Err(kTopic, node.address + " is a daemon that cannot examine itself",
                 "install the version of this luwuctl there");
    }
    return Err(kTopic,
               fmt::format("{} does not answer: {}", node.address, Reason(node.diagnosis.status())),
               "start luwud there and look at its log; open its control port to this host");
  }
  if (!node.name.empty() && node.diagnosis->node != node.name) {
    return Err(kTopic, fmt::format("{} is answered by {}", node.address, node.diagnosis->node),
               "correct the control addresses in [[nodes]]: another daemon has this one");
  }
  return Ok(kTopic, node.address + " answers");
}

Finding CheckDataReach(const NodeFacts& node) {
  constexpr Topic kTopic = Topic::kDataReach;
  if (node.data_reach.ok()) return Ok(kTopic, node.data_address + " takes connections");
  return Err(kTopic, "no connection to the data port: " + MessageOf(node.data_reach),
             "open the port; data in [[nodes]] must be an address that trainers can dial");
}

// "1.0 at node0, node2; 1.1 at node1", in the order of the values.
std::string GroupsText(const std::map<std::string, std::vector<std::string>>& groups) {
  std::string text;
  for (const auto& [value, names] : groups) {
    text += fmt::format("{}{} at {}", text.empty() ? "" : "; ", value, fmt::join(names, ", "));
  }
  return text;
}

void CheckAgreement(const std::vector<NodeFacts>& nodes, DoctorRows* rows) {
  std::map<std::string, std::vector<std::string>> lists;
  std::map<std::string, std::vector<std::string>> versions;
  for (const NodeFacts& node : nodes) {
    if (!node.diagnosis.ok()) continue;
    lists[fmt::format("{:016x}", node.diagnosis->nodes_fingerprint)].push_back(NameOf(node));
    versions[node.diagnosis->version].push_back(NameOf(node));
  }
  if (lists.empty()) return;
  rows->push_back(RowOf(
      "cluster", lists.size() == 1
                     ? Ok(Topic::kNodeList, "all daemons that answer have one node list")
                     : Err(Topic::kNodeList, "different node lists: " + GroupsText(lists),
                           "give all daemons equal [[nodes]], in one order, and restart them")));
  rows->push_back(
      RowOf("cluster", versions.size() == 1
                           ? Ok(Topic::kVersion, "all have " + versions.begin()->first)
                           : Warn(Topic::kVersion, "different versions: " + GroupsText(versions),
                                  "install one version everywhere")));
}

// How far the node is ahead of this host for certain; what the call itself may explain is 0.
int64_t AheadUs(const ClockReading& clock) {
  if (clock.node_us > clock.after_us) return clock.node_us - clock.after_us;
  return std::min<int64_t>(clock.node_us - clock.before_us, 0);
}

void CheckClocks(const std::vector<NodeFacts>& nodes, DoctorRows* rows) {
  std::pair<int64_t, std::string> slowest = {0, "this host"};
  std::pair<int64_t, std::string> fastest = slowest;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    if (!node.clock) continue;
    any = true;
    const int64_t ahead_us = AheadUs(*node.clock);
    if (ahead_us < slowest.first) slowest = {ahead_us, NameOf(node)};
    if (ahead_us > fastest.first) fastest = {ahead_us, NameOf(node)};
  }
  if (!any) return;
  const int64_t apart_us = fastest.first - slowest.first;
  if (apart_us <= kClockUsMax) {
    rows->push_back(RowOf("cluster", Ok(Topic::kClock, "all within a second of this host's")));
    return;
  }
  rows->push_back(RowOf("cluster", Warn(Topic::kClock,
                                        fmt::format("{} is {:.1f} s ahead of {}", fastest.second,
                                                    double(apart_us) * 1e-6, slowest.second),
                                        "run chrony or another NTP client on all hosts")));
}

}  // namespace

DoctorRow RowOf(const std::string& where, const Finding& finding) {
  return {where, std::string(doctor::NameOf(finding.topic)), finding.severity, finding.summary,
          finding.hint};
}

Severity WorstOf(const DoctorRows& rows) {
  Severity worst = Severity::kOk;
  for (const DoctorRow& row : rows) worst = std::max(worst, row.severity);
  return worst;
}

DoctorRows CheckCluster(const std::vector<NodeFacts>& nodes) {
  DoctorRows rows;
  for (const NodeFacts& node : nodes) {
    rows.push_back(RowOf(NameOf(node), CheckNode(node)));
    if (!node.data_address.empty()) rows.push_back(RowOf(NameOf(node), CheckDataReach(node)));
    if (!node.diagnosis.ok()) continue;
    rows.insert(rows.end(), node.diagnosis->rows.begin(), node.diagnosis->rows.end());
  }
  CheckAgreement(nodes, &rows);
  CheckClocks(nodes, &rows);
  return rows;
}

}  // namespace luwu::cli
