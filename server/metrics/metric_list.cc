#include "server/metrics/metric_list.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace luwu {

std::string_view KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "unknown";
}

const std::vector<Metric>& AllMetrics() {
  static const std::vector<Metric> all = [] {
    std::vector<Metric> metrics = NodeMetrics();
    for (std::vector<Metric> more : {IdentityMetrics(), JobMetrics()}) {
      metrics.insert(metrics.end(), std::make_move_iterator(more.begin()),
                     std::make_move_iterator(more.end()));
    }
    return metrics;
  }();
  return all;
}

std::string MetricsMarkdown() {
  std::string out =
      "# Metrics\n\n"
      "What `luwud` shows at `http://ADDRESS/metrics` when its configuration has\n"
      "`[metrics] listen = \"ADDRESS\"` ([monitoring](../operating/monitoring.md)). This page is "
      "the\n"
      "output of `luwud --list-metrics`. Counters begin anew with the daemon, those of a job also "
      "when\n"
      "it comes back on the node. The page also has three metrics of its own library: bytes, "
      "number\n"
      "and latency of scrapes (`exposer_*`).\n\n"
      "| metric | kind | labels | |\n| --- | --- | --- | --- |\n";
  for (const Metric& metric : AllMetrics()) {
    std::vector<std::string> labels;
    for (const std::string_view label : metric.labels) labels.push_back(fmt::format("`{}`", label));
    out += fmt::format("| `{}` | {} | {} | {} |\n", metric.name, KindName(metric.kind),
                       fmt::join(labels, ", "), metric.help);
  }
  return out;
}

}  // namespace luwu
