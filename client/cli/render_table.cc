#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "client/cli/call_error.h"
#include "client/cli/render.h"
#include "client/cli/table.h"

namespace luwu::cli {
namespace {

using rpc::NodeStatus;

constexpr char kUnknownName[] = "-";

std::string SeverityWord(v1::Severity severity) {
  switch (severity) {
    case v1::SEVERITY_OK:
      return "OK";
    case v1::SEVERITY_WARN:
      return "WARN";
    case v1::SEVERITY_ERR:
      return "ERR";
    default:
      return "UNKNOWN";
  }
}

std::string NameOf(const NodeStatus& node) { return node.name.empty() ? kUnknownName : node.name; }

std::string OrDash(const std::string& text) { return text.empty() ? kUnknownName : text; }

std::string Summary(const std::vector<NodeStatus>& nodes) {
  const auto answering = std::count_if(nodes.begin(), nodes.end(),
                                       [](const NodeStatus& node) { return node.status.ok(); });
  return fmt::format("{} of {} {} answering, overall {}\n\n", answering, nodes.size(),
                     nodes.size() == 1 ? "node" : "nodes",
                     SeverityWord(rpc::OverallSeverity(nodes)));
}

std::string NodeTable(const std::vector<NodeStatus>& nodes) {
  Table table({"NODE", "ADDRESS", "STATE", ">UPTIME", ">MEMORY USED", ">BUDGET", ">JOBS",
               ">THREADS", "KERNEL", "VERSION", ">PID"});
  for (const NodeStatus& node : nodes) {
    if (!node.status.ok()) {
      table.AddRow({NameOf(node), node.address, "DOWN", Reason(node.status.status())});
      continue;
    }
    const v1::DaemonStatus& status = *node.status;
    table.AddRow({NameOf(node), node.address, SeverityWord(status.overall()),
                  ShortDuration(status.uptime_ms()), ShortBytes(status.memory_used_bytes()),
                  ShortBytes(status.memory_budget_bytes()), std::to_string(status.jobs_size()),
                  std::to_string(status.update_threads()), status.kernel(), status.version(),
                  std::to_string(status.pid())});
  }
  return table.Render();
}

// By the clock of the node; "-" for a daemon that does not tell.
std::string SinceText(uint64_t unix_ms) {
  return unix_ms == 0 ? "-" : UtcTime(static_cast<int64_t>(unix_ms / 1000));
}

std::string ChecksTable(const std::vector<NodeStatus>& nodes) {
  Table table({"NODE", "SEVERITY", "CHECK", "SINCE", "WHAT"});
  for (const NodeStatus& node : nodes) {
    if (!node.status.ok()) continue;
    for (const v1::Check& check : node.status->checks()) {
      if (check.severity() == v1::SEVERITY_OK) continue;
      const std::string hint = check.hint().empty() ? "" : fmt::format(" ({})", check.hint());
      table.AddRow({NameOf(node), SeverityWord(check.severity()), check.name(),
                    SinceText(check.since_unix_ms()), check.summary() + hint});
    }
  }
  return table.empty() ? "" : "\n" + table.Render();
}

// Of any magnitude; "-" for what there is none of.
std::string ShortNumber(double value) { return fmt::format("{:.4g}", value); }
std::string NormOf(const v1::JobStatus& job) {
  return job.last_outcome().empty() ? kUnknownName : ShortNumber(job.grad_norm());
}
std::string ScaleOf(const v1::JobStatus& job) {
  return job.loss_scale() == 1 ? kUnknownName : fmt::format("{:g}", job.loss_scale());
}

// "adamw", or "adamw bfloat16/split": what is not float32 is named.
std::string OptimizerOf(const v1::JobStatus& job) {
  const bool plain = job.state_precision() == "float32" && job.master_format() == "float32";
  if (plain || job.optimizer().empty()) return OrDash(job.optimizer());
  const bool split = job.master_format() == "split";
  return fmt::format("{} {}{}", job.optimizer(), job.state_precision(), split ? "/split" : "");
}

// One job over all nodes that answered.
struct JobTotals {
  std::set<std::string> states;
  std::string optimizer;
  std::string update_mode;
  std::string last_outcome;
  std::string norm;
  std::string scale;
  uint64_t clipped = 0;
  uint64_t step_min = UINT64_MAX;
  uint64_t step_max = 0;
  uint64_t skipped = 0;
  uint32_t world_size = 0;
  uint64_t nodes = 0;
  std::map<uint32_t, uint64_t> live_on_nodes;  // rank -> nodes that hold a live session of it
  uint64_t elements = 0;
  uint64_t state_bytes = 0;
  uint64_t served_bytes = 0;
  uint64_t inbox_bytes = 0;
  uint64_t pushed_bytes = 0;

  void Add(const v1::JobStatus& job) {
    states.insert(job.state());
    optimizer = OptimizerOf(job);
    update_mode = job.update_mode();
    last_outcome = job.last_outcome();
    norm = NormOf(job);
    scale = ScaleOf(job);
    clipped = std::max(clipped, job.clipped_steps());
    step_min = std::min(step_min, job.current_step());
    step_max = std::max(step_max, job.current_step());
    skipped = std::max(skipped, job.skipped_steps());
    world_size = job.world_size();
    ++nodes;
    elements += job.local_elements();
    state_bytes += job.state_bytes();
    served_bytes += job.served_bytes();
    inbox_bytes += job.inbox_bytes();
    for (const v1::WorkerStatus& worker : job.workers()) {
      if (worker.lease_left_ms() > 0) ++live_on_nodes[worker.rank()];
      pushed_bytes += worker.pushed_bytes();
    }
  }
  std::string Workers() const {
    const auto everywhere =
        std::count_if(live_on_nodes.begin(), live_on_nodes.end(),
                      [this](const auto& rank) { return rank.second == nodes; });
    return fmt::format("{}/{}", everywhere, world_size);
  }
  // Nodes commit a step one after the other, so for a moment they may differ.
  std::string Steps() const {
    return step_min == step_max ? std::to_string(step_max)
                                : fmt::format("{}..{}", step_min, step_max);
  }
};

std::string JobTotalsTable(const std::vector<NodeStatus>& nodes) {
  std::map<std::string, JobTotals> jobs;
  for (const NodeStatus& node : nodes) {
    if (!node.status.ok()) continue;
    for (const v1::JobStatus& job : node.status->jobs()) jobs[job.name()].Add(job);
  }
  const auto answers = [](const NodeStatus& node) { return node.status.ok(); };
  if (jobs.empty()) {
    return std::any_of(nodes.begin(), nodes.end(), answers) ? "\nNo jobs.\n" : "";
  }
  Table table({"JOB", "STATE", "OPTIMIZER", "UPDATES", ">STEP", "LAST", ">SKIPPED", ">CLIPPED",
               ">NORM", ">SCALE", ">WORKERS", ">PARAMS", ">STATE IN MEMORY", ">SERVED", ">INBOX",
               ">PUSHED"});
  for (const auto& [name, job] : jobs) {
    table.AddRow({name, fmt::format("{}", fmt::join(job.states, "/")), job.optimizer,
                  OrDash(job.update_mode), job.Steps(), OrDash(job.last_outcome),
                  std::to_string(job.skipped), std::to_string(job.clipped), job.norm, job.scale,
                  job.Workers(), ShortCount(job.elements), ShortBytes(job.state_bytes),
                  ShortBytes(job.served_bytes), ShortBytes(job.inbox_bytes),
                  ShortBytes(job.pushed_bytes)});
  }
  return "\n" + table.Render();
}

void AddJobRow(const NodeStatus& node, const v1::JobStatus& job, Table* table) {
  // Of one update thread; 2 updates of 1 M parameters in 1 s of thread time are 2 M/s.
  const double rate = job.update_seconds() > 0
                          ? static_cast<double>(job.updated_elements()) / job.update_seconds()
                          : 0;
  table->AddRow({job.name(),
                 NameOf(node),
                 job.state(),
                 OptimizerOf(job),
                 OrDash(job.update_mode()),
                 std::to_string(job.current_step()),
                 OrDash(job.last_outcome()),
                 std::to_string(job.skipped_steps()),
                 std::to_string(job.clipped_steps()),
                 NormOf(job),
                 ScaleOf(job),
                 ShortCount(job.local_elements()),
                 ShortBytes(job.state_bytes()),
                 ShortBytes(job.held_bytes()),
                 ShortBytes(job.served_bytes()),
                 ShortBytes(job.inbox_bytes()),
                 ShortBytes(job.overflow_bytes()),
                 ShortCount(job.updates()),
                 ShortCount(static_cast<uint64_t>(rate)) + "/s",
                 ShortCount(job.duplicates()),
                 ShortCount(job.rejected_slots()),
                 std::to_string(job.parked_slots())});
}

void AddWorkerRows(const NodeStatus& node, const v1::JobStatus& job, Table* table) {
  for (const v1::WorkerStatus& worker : job.workers()) {
    table->AddRow({job.name(), std::to_string(worker.rank()), NameOf(node), OrDash(worker.host()),
                   std::to_string(worker.pid()), std::to_string(worker.restart_count()),
                   OrDash(worker.transport()),
                   worker.lease_left_ms() > 0 ? ShortDuration(worker.lease_left_ms()) : "expired",
                   std::to_string(worker.last_step()),
                   worker.transport() == "shm" ? kUnknownName : ShortBytes(worker.fetched_bytes()),
                   ShortBytes(worker.pushed_bytes()), std::to_string(worker.slots_held())});
  }
}

std::string DownTable(const std::vector<NodeStatus>& nodes) {
  Table table({"NODE", "ADDRESS", "ERROR"});
  for (const NodeStatus& node : nodes) {
    if (!node.status.ok()) {
      table.AddRow({NameOf(node), node.address, Reason(node.status.status())});
    }
  }
  return table.empty() ? "" : table.Render();
}

}  // namespace

std::string StatusTables(const std::vector<NodeStatus>& nodes) {
  return Summary(nodes) + NodeTable(nodes) + JobTotalsTable(nodes) + StorageTables(nodes) +
         ChecksTable(nodes);
}

std::string JobTables(const std::vector<NodeStatus>& nodes) {
  Table jobs({"JOB",
              "NODE",
              "STATE",
              "OPTIMIZER",
              "UPDATES",
              ">STEP",
              "LAST",
              ">SKIPPED",
              ">CLIPPED",
              ">NORM",
              ">SCALE",
              ">PARAMS",
              ">STATE IN MEMORY",
              ">HELD",
              ">SERVED",
              ">INBOX",
              ">OVERFLOW",
              ">SHARDS DONE",
              ">PARAMS/S",
              ">REPEATS",
              ">REJECTED",
              ">PARKED"});
  Table workers({"JOB", ">RANK", "NODE", "HOST", ">PID", ">RESTARTS", "LINK", ">LEASE", ">STEP",
                 ">FETCHED", ">PUSHED", ">SLOTS"});
  for (const NodeStatus& node : nodes) {
    if (!node.status.ok()) continue;
    for (const v1::JobStatus& job : node.status->jobs()) {
      AddJobRow(node, job, &jobs);
      AddWorkerRows(node, job, &workers);
    }
  }
  const std::string down = DownTable(nodes);
  std::string out = !jobs.empty() ? jobs.Render() + "\n" : down.empty() ? "No jobs.\n" : "";
  if (!workers.empty()) out += workers.Render() + (down.empty() ? "" : "\n");
  return out + down;
}

std::string HealthTable(const std::vector<HealthReport>& reports) {
  Table table({"NODE", "ADDRESS", "HEALTH", "STATE", "WHAT"});
  for (const HealthReport& report : reports) {
    const NodeStatus& node = report.node;
    if (!node.status.ok()) {
      table.AddRow(
          {NameOf(node), node.address, report.health, "ERR", Reason(node.status.status())});
      continue;
    }
    std::string what;
    for (const v1::Check& check : node.status->checks()) {
      if (check.severity() == v1::SEVERITY_OK) continue;
      what += fmt::format("{}{}: {}", what.empty() ? "" : "; ", check.name(), check.summary());
    }
    table.AddRow({NameOf(node), node.address, report.health, SeverityWord(node.status->overall()),
                  OrDash(what)});
  }
  return table.Render();
}

std::string DeleteText(const std::string& job, const std::vector<DeleteReport>& reports) {
  std::string out;
  for (const DeleteReport& report : reports) {
    if (report.status.ok()) {
      out +=
          Printable(fmt::format("job {} deleted on {} ({})", job,
                                report.name.empty() ? kUnknownName : report.name, report.address)) +
          "\n";
    }
  }
  return out;
}

}  // namespace luwu::cli
