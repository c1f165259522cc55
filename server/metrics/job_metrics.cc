// Metrics of each job on this node, and of its workers.
#include <algorithm>
#include <utility>

#include "server/metrics/metric_list.h"

namespace luwu {
namespace {

using Samples = std::vector<MetricSample>;
constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kCounter = MetricKind::kCounter;

auto OfJob(double (*read)(const JobSnapshot&)) {
  return [read](const DaemonSnapshot& node) {
    Samples out;
    for (const JobSnapshot& job : node.jobs) {
      out.push_back({.labels = {job.name}, .value = read(job)});
    }
    return out;
  };
}

auto OfWorker(double (*read)(const WorkerSnapshot&)) {
  return [read](const DaemonSnapshot& node) {
    Samples out;
    for (const JobSnapshot& job : node.jobs) {
      for (const WorkerSnapshot& worker : job.workers) {
        out.push_back({.labels = {job.name, std::to_string(worker.rank)}, .value = read(worker)});
      }
    }
    return out;
  };
}

Samples Info(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    out.push_back({.labels = {job.name, std::string(OptimizerName(job.optimizer.kind)),
                              std::string(StatePrecisionName(job.optimizer.state_precision)),
                              std::string(UpdateModeName(job.update_mode)),
                              std::string(DurabilityName(job.durability))},
                   .value = 1});
  }
  return out;
}

Samples Steps(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    out.push_back({.labels = {job.name, "applied"}, .value = double(job.applied_steps)});
    out.push_back({.labels = {job.name, "skipped"}, .value = double(job.skipped_steps)});
  }
  return out;
}

Samples StepDurations(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    out.push_back({.labels = {job.name}, .value = 0, .times = job.step_times});
  }
  return out;
}

Samples MeanStep(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    if (job.tiers.timed_steps == 0) continue;
    out.push_back({.labels = {job.name}, .value = job.tiers.mean_step_seconds});
  }
  return out;
}

Samples Workers(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    const auto lost = std::count_if(job.workers.begin(), job.workers.end(),
                                    [](const auto& worker) { return worker.lease_left_ms == 0; });
    out.push_back(
        {.labels = {job.name, "connected"}, .value = double(job.workers.size()) - double(lost)});
    out.push_back({.labels = {job.name, "lost"}, .value = double(lost)});
  }
  return out;
}

Samples Memory(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    const JobFootprint& memory = job.footprint;
    const std::pair<const char*, uint64_t> parts[] = {
        {"state", memory.state_bytes},     {"served", memory.served_bytes},
        {"inbox", memory.inbox_bytes},     {"overflow", memory.overflow_bytes},
        {"held", memory.held_bytes},       {"table", memory.table_bytes},
        {"staging", memory.staging_bytes},
    };
    for (const auto& [part, bytes] : parts) {
      out.push_back({.labels = {job.name, part}, .value = double(bytes)});
    }
  }
  return out;
}

Samples Tiers(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    out.push_back({.labels = {job.name, "memory"}, .value = double(job.tiers.resident_bytes)});
    out.push_back({.labels = {job.name, "disk"}, .value = double(job.tiers.spilled_bytes)});
  }
  return out;
}

// Steps that a crash of a node would undo; only of jobs that make points.
Samples Undurable(const DaemonSnapshot& node) {
  Samples out;
  for (const JobSnapshot& job : node.jobs) {
    if (job.durable_every == 0) continue;
    const uint64_t durable = std::min(job.durable_step.value_or(0), job.current_step);
    out.push_back({.labels = {job.name}, .value = double(job.current_step - durable)});
  }
  return out;
}

std::vector<Metric> Progress() {
  return {
      {"luwu_job_info",
       kGauge,
       {"job_name", "optimizer", "state_precision", "update_mode", "durability"},
       "1, for each job that is served; `luwu_jobs` counts the others",
       Info},
      {"luwu_job_failed",
       kGauge,
       {"job_name"},
       "1 when it accepts no further step",
       OfJob([](const JobSnapshot& j) { return j.state == JobState::kFailed ? 1.0 : 0.0; })},
      {"luwu_job_step",
       kGauge,
       {"job_name"},
       "the open step; falls when the job goes back to a point",
       OfJob([](const JobSnapshot& j) { return double(j.current_step); })},
      {"luwu_job_steps_total", kCounter, {"job_name", "outcome"}, "steps that were decided", Steps},
      {"luwu_job_clipped_steps_total",
       kCounter,
       {"job_name"},
       "steps in which some gradient was clipped",
       OfJob([](const JobSnapshot& j) { return double(j.clipped_steps); })},
      {"luwu_job_step_duration_seconds",
       MetricKind::kHistogram,
       {"job_name"},
       "from the first worker's begin to the decision",
       StepDurations},
      {"luwu_job_step_mean_seconds",
       kGauge,
       {"job_name"},
       "from one decision to the next, over the last 64 at most",
       MeanStep},
      {"luwu_job_grad_norm",
       kGauge,
       {"job_name"},
       "of the last step, before clipping; NaN when it was not finite",
       OfJob([](const JobSnapshot& j) { return j.grad_norm; })},
      {"luwu_job_loss_scale",
       kGauge,
       {"job_name"},
       "of the open step; 1 without loss scaling",
       OfJob([](const JobSnapshot& j) { return double(j.loss_scale); })},
      {"luwu_job_durable_every_steps",
       kGauge,
       {"job_name"},
       "how often it makes a point; 0: never",
       OfJob([](const JobSnapshot& j) { return double(j.durable_every); })},
      {"luwu_job_undurable_steps",
       kGauge,
       {"job_name"},
       "steps since the newest point that all nodes have; only of jobs that make points",
       Undurable},
  };
}

std::vector<Metric> Work() {
  return {
      {"luwu_job_elements",
       kGauge,
       {"job_name"},
       "parameters that this node holds",
       OfJob([](const JobSnapshot& j) { return double(j.local_elements); })},
      {"luwu_job_memory_bytes",
       kGauge,
       {"job_name", "part"},
       "what it has reserved of memory",
       Memory},
      {"luwu_job_state_bytes",
       kGauge,
       {"job_name", "tier"},
       "masters and moments by where they are: `memory`, `disk`",
       Tiers},
      {"luwu_job_updates_total",
       kCounter,
       {"job_name"},
       "shards updated",
       OfJob([](const JobSnapshot& j) { return double(j.updates); })},
      {"luwu_job_updated_elements_total",
       kCounter,
       {"job_name"},
       "parameters updated",
       OfJob([](const JobSnapshot& j) { return double(j.updated_elements); })},
      {"luwu_job_update_seconds_total",
       kCounter,
       {"job_name"},
       "spent in updates, over all threads",
       OfJob([](const JobSnapshot& j) { return j.update_seconds; })},
      {"luwu_job_duplicate_slots_total",
       kCounter,
       {"job_name"},
       "pushes recognised as repeats",
       OfJob([](const JobSnapshot& j) { return double(j.duplicates); })},
      {"luwu_job_rejected_slots_total",
       kCounter,
       {"job_name"},
       "pushes refused; their session ends",
       OfJob([](const JobSnapshot& j) { return double(j.rejected_slots); })},
      {"luwu_job_parked_slots",
       kGauge,
       {"job_name"},
       "gradients that wait for those of other ranks",
       OfJob([](const JobSnapshot& j) { return double(j.parked_slots); })},
  };
}

std::vector<Metric> Disk() {
  return {
      {"luwu_job_spill_loads_total",
       kCounter,
       {"job_name"},
       "pieces of state read for an update",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.spill.loads); })},
      {"luwu_job_spill_read_ahead_total",
       kCounter,
       {"job_name"},
       "those read before they were asked for",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.spill.read_ahead); })},
      {"luwu_job_spill_wasted_total",
       kCounter,
       {"job_name"},
       "those read ahead and thrown away unused",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.spill.wasted); })},
      {"luwu_job_spill_waits_total",
       kCounter,
       {"job_name"},
       "updates that waited for their state",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.spill.waits); })},
      {"luwu_job_spill_read_bytes_total",
       kCounter,
       {"job_name"},
       "state read",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.spill.read_bytes); })},
      {"luwu_job_spill_written_bytes_total",
       kCounter,
       {"job_name"},
       "state written",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.spill.written_bytes); })},
      {"luwu_job_spill_busy_seconds_total",
       kCounter,
       {"job_name"},
       "with a transfer of state under way",
       OfJob([](const JobSnapshot& j) { return j.tiers.spill.busy_seconds; })},
      {"luwu_job_point_written_bytes_total",
       kCounter,
       {"job_name"},
       "written for points, of state that is in memory",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.point_written_bytes); })},
      {"luwu_job_window_wants_total",
       kCounter,
       {"job_name"},
       "served copies that workers wanted and that were on disk",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.window.wants); })},
      {"luwu_job_window_read_bytes_total",
       kCounter,
       {"job_name"},
       "served copies read",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.window.read_bytes); })},
      {"luwu_job_window_written_bytes_total",
       kCounter,
       {"job_name"},
       "served copies written",
       OfJob([](const JobSnapshot& j) { return double(j.tiers.window.written_bytes); })},
  };
}

std::vector<Metric> WorkerMetrics() {
  return {
      {"luwu_job_world_size",
       kGauge,
       {"job_name"},
       "workers that the job has",
       OfJob([](const JobSnapshot& j) { return double(j.world_size); })},
      {"luwu_job_workers",
       kGauge,
       {"job_name", "state"},
       "workers with a session: `connected`, or `lost` without a heartbeat",
       Workers},
      {"luwu_worker_step",
       kGauge,
       {"job_name", "rank"},
       "the newest step it began",
       OfWorker([](const WorkerSnapshot& w) { return double(w.last_step); })},
      {"luwu_worker_restarts",
       kGauge,
       {"job_name", "rank"},
       "how often it was started again, as it says",
       OfWorker([](const WorkerSnapshot& w) { return double(w.restart_count); })},
      {"luwu_worker_lease_left_seconds",
       kGauge,
       {"job_name", "rank"},
       "0: it counts as lost",
       OfWorker([](const WorkerSnapshot& w) { return double(w.lease_left_ms) / 1000; })},
      {"luwu_worker_slots_held",
       kGauge,
       {"job_name", "rank"},
       "gradients of it that are being kept",
       OfWorker([](const WorkerSnapshot& w) { return double(w.slots_held); })},
      {"luwu_worker_pushed_bytes_total",
       kCounter,
       {"job_name", "rank"},
       "gradients, in this session",
       OfWorker([](const WorkerSnapshot& w) { return double(w.pushed_bytes); })},
      {"luwu_worker_fetched_bytes_total",
       kCounter,
       {"job_name", "rank"},
       "weights over tcp, in this session; shared memory and RDMA reads pass no daemon",
       OfWorker([](const WorkerSnapshot& w) { return double(w.fetched_bytes); })},
  };
}

}  // namespace

std::vector<Metric> JobMetrics() {
  std::vector<Metric> all = Progress();
  for (auto part : {Work, Disk, WorkerMetrics}) {
    for (Metric& metric : part()) all.push_back(std::move(metric));
  }
  return all;
}

}  // namespace luwu
