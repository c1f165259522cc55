// Every metric of the Prometheus page in one table: name, kind, labels, help, and how it is read
// from the snapshot that is behind the status RPC too. The page and docs/reference/METRICS.md are
// made from it (`luwud --list-metrics`), so neither can miss one.
//
// Names have the prefix luwu_, base units, and _total for what only grows. Labels are from closed
// sets: jobs, ranks, states, outcomes, identities; never layers. A job's label is job_name, for
// Prometheus gives `job` a meaning of its own. A counter begins anew with the daemon, and those of
// a job when it comes back on this node.
//
// The table is immutable; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/service/status_snapshot.h"

namespace luwu {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

struct MetricSample {
  std::vector<std::string> labels;  // values, in the order of Metric::labels
  double value = 0;                 // of a histogram: not used
  StepTimes times = {};             // of a histogram
};

struct Metric {
  std::string_view name;
  MetricKind kind = MetricKind::kGauge;
  std::vector<std::string_view> labels;
  std::string_view help;
  // Nothing for what this node or job does not have.
  std::function<std::vector<MetricSample>(const DaemonSnapshot&)> read;
};

std::string_view KindName(MetricKind kind);  // "counter"

// In the order of the page; made at the first call.
const std::vector<Metric>& AllMetrics();
// Parts of it.
std::vector<Metric> NodeMetrics();
std::vector<Metric> IdentityMetrics();
std::vector<Metric> JobMetrics();

// docs/reference/METRICS.md.
std::string MetricsMarkdown();

}  // namespace luwu
