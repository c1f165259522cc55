// Judges what the daemons of a cluster said of themselves, side by side. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/doctor/finding.h"

namespace luwu::cli {

// A finding and whom it is about: "here" (the host of luwuctl), a node, or "cluster". Names are
// text: a newer daemon may know topics that this program does not.
struct DoctorRow {
  std::string where;
  std::string name;
  doctor::Severity severity = doctor::Severity::kOk;
  std::string summary;
  std::string hint;
};
using DoctorRows = std::vector<DoctorRow>;

DoctorRow RowOf(const std::string& where, const doctor::Finding& finding);
doctor::Severity WorstOf(const DoctorRows& rows);

struct Diagnosis {
  std::string node;  // as the daemon calls itself
  std::string version;
  uint64_t nodes_fingerprint = 0;
  DoctorRows rows;
};

// This host's clock before a daemon was asked for its own, the daemon's, and this host's after.
struct ClockReading {
  int64_t before_us = 0;
  int64_t node_us = 0;
  int64_t after_us = 0;
};

struct NodeFacts {
  std::string name;  // from the node list; empty: it is not known
  std::string address;
  StatusOr<Diagnosis> diagnosis;
  std::string data_address = "";   // empty: it has none
  Status data_reach = OkStatus();  // a connection from this host
  std::optional<ClockReading> clock = std::nullopt;
};

// Rows of every node, in order, then those about the cluster.
DoctorRows CheckCluster(const std::vector<NodeFacts>& nodes);

}  // namespace luwu::cli
