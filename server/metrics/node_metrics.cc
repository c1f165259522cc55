// Metrics of the daemon and its data directory.
#include <algorithm>
#include <array>
#include <utility>

#include "server/metrics/metric_list.h"

namespace luwu {
namespace {

using Samples = std::vector<MetricSample>;

auto OfNode(double (*read)(const DaemonSnapshot&)) {
  return
      [read](const DaemonSnapshot& node) { return Samples{{.labels = {}, .value = read(node)}}; };
}

auto OfStorage(double (*read)(const persist::StorageSnapshot&)) {
  return [read](const DaemonSnapshot& node) {
    Samples out;
    if (node.storage) out.push_back({.labels = {}, .value = read(*node.storage)});
    return out;
  };
}

Samples Info(const DaemonSnapshot& node) {
  return {{.labels = {node.node, node.version, node.kernel}, .value = 1}};
}

// All of them, so that an alert sees a check go as well as come.
Samples Checks(const DaemonSnapshot& node) {
  Samples out;
  for (const CheckName& check : kCheckNames) {
    const auto count =
        std::count_if(node.checks.begin(), node.checks.end(),
                      [&](const StatusCheck& active) { return active.name == check.name; });
    out.push_back(
        {.labels = {std::string(check.name), check.severity == Severity::kErr ? "err" : "warn"},
         .value = double(count)});
  }
  return out;
}

Samples Jobs(const DaemonSnapshot& node) {
  std::array<std::pair<const char*, uint64_t>, 5> counts = {
      {{"loading", 0}, {"training", 0}, {"failed", 0}, {"recovering", 0}, {"lost", 0}}};
  for (const JobSnapshot& job : node.jobs) ++counts[static_cast<size_t>(job.state)].second;
  for (const AbsentJob& job : node.absent_jobs)
    ++counts[job.phase == JobPhase::kLost ? 4 : 3].second;
  Samples out;
  for (const auto& [state, count] : counts) {
    out.push_back({.labels = {state}, .value = double(count)});
  }
  return out;
}

Samples StorageInfo(const DaemonSnapshot& node) {
  if (!node.storage) return {};
  const bool extents = node.storage->engine == persist::Engine::kExtents;
  return {{.labels = {extents ? "extents" : "rocksdb_values"}, .value = 1}};
}

std::vector<Metric> DaemonMetrics() {
  constexpr MetricKind kGauge = MetricKind::kGauge;
  return {
      {"luwu_build_info",
       kGauge,
       {"node", "version", "kernel"},
       "1; the node's name, the version, and the vector units its optimizers use",
       Info},
      {"luwu_start_time_seconds",
       kGauge,
       {},
       "when the daemon was started, Unix time",
       OfNode([](const DaemonSnapshot& n) { return double(n.started_unix_ms) / 1000; })},
      {"luwu_snapshot_timestamp_seconds",
       kGauge,
       {},
       "when everything on this page was read, Unix time; once a second, unless the daemon is "
       "stuck",
       OfNode([](const DaemonSnapshot& n) { return double(n.taken_unix_ms) / 1000; })},
      {"luwu_update_threads",
       kGauge,
       {},
       "threads of the update step",
       OfNode([](const DaemonSnapshot& n) { return double(n.update_threads); })},
      {"luwu_memory_budget_bytes",
       kGauge,
       {},
       "what jobs may use of memory",
       OfNode([](const DaemonSnapshot& n) { return double(n.memory_budget_bytes); })},
      {"luwu_memory_used_bytes",
       kGauge,
       {},
       "what they use, and RocksDB",
       OfNode([](const DaemonSnapshot& n) { return double(n.memory_used_bytes); })},
      {"luwu_checks",
       kGauge,
       {"check", "severity"},
       "how many checks of that name are raised now; `luwuctl status` has their texts",
       Checks},
      {"luwu_jobs", kGauge, {"state"}, "jobs on this node", Jobs},
  };
}

std::vector<Metric> StorageMetrics() {
  constexpr MetricKind kGauge = MetricKind::kGauge;
  constexpr MetricKind kCounter = MetricKind::kCounter;
  using Storage = persist::StorageSnapshot;
  return {
      {"luwu_storage_info",
       kGauge,
       {"engine"},
       "1; only with a data directory, like all of storage",
       StorageInfo},
      {"luwu_storage_budget_bytes",
       kGauge,
       {},
       "what payload may take of the disk",
       OfStorage([](const Storage& s) { return double(s.budget_bytes); })},
      {"luwu_storage_used_bytes",
       kGauge,
       {},
       "what it takes, checkpoints included",
       OfStorage([](const Storage& s) { return double(s.used_bytes); })},
      {"luwu_storage_allocated_bytes",
       kGauge,
       {},
       "what its files take of the file system",
       OfStorage([](const Storage& s) { return double(s.allocated_bytes); })},
      {"luwu_storage_free_bytes",
       kGauge,
       {},
       "what the file system has left",
       OfStorage([](const Storage& s) { return double(s.free_bytes); })},
      {"luwu_storage_read_bytes_total",
       kCounter,
       {},
       "read from the data directory",
       OfStorage([](const Storage& s) { return double(s.read_bytes); })},
      {"luwu_storage_written_bytes_total",
       kCounter,
       {},
       "written to it",
       OfStorage([](const Storage& s) { return double(s.written_bytes); })},
      {"luwu_storage_full",
       kGauge,
       {},
       "1 while writes wait for space",
       OfStorage([](const Storage& s) { return s.full ? 1.0 : 0.0; })},
      {"luwu_storage_waiting_writes", kGauge, {}, "how many wait", OfStorage([](const Storage& s) {
         return double(s.waiting_writes);
       })},
      {"luwu_storage_failed",
       kGauge,
       {},
       "1 when nothing is written any more until a restart",
       OfStorage([](const Storage& s) { return s.failed.empty() ? 0.0 : 1.0; })},
      {"luwu_storage_damaged_records",
       kGauge,
       {},
       "pieces whose checksum was wrong, of those that are remembered since the start",
       OfStorage([](const Storage& s) { return double(s.damaged.size()); })},
      {"luwu_storage_scrubbed_bytes_total",
       kCounter,
       {},
       "read again by the background check",
       OfStorage([](const Storage& s) { return double(s.scrubbed_bytes); })},
      {"luwu_storage_scrub_cycles_total",
       kCounter,
       {},
       "how often it has read everything",
       OfStorage([](const Storage& s) { return double(s.scrub_cycles); })},
  };
}

}  // namespace

std::vector<Metric> NodeMetrics() {
  std::vector<Metric> all = DaemonMetrics();
  for (Metric& metric : StorageMetrics()) all.push_back(std::move(metric));
  return all;
}

}  // namespace luwu
