#include "client/cli/plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "client/cli/table.h"

namespace luwu::cli {
namespace {

constexpr double kSecondsPerDay = 86400;

struct NodePlan {
  std::string node;
  const v1::JobStatus* job = nullptr;

  const v1::JobTiers& tiers() const { return job->tiers(); }
  uint64_t moved_bytes() const { return tiers().read_bytes() + tiers().written_bytes(); }
  // Of both ways together, as measured since the job began; 0: nothing was moved yet.
  double bytes_per_s() const {
    return tiers().busy_seconds() > 0 ? double(moved_bytes()) / tiers().busy_seconds() : 0;
  }
  double predicted_seconds() const {
    return bytes_per_s() > 0 ? 2 * double(tiers().streamed_bytes()) / bytes_per_s() : 0;
  }
  // What a durable point adds to the writes of a step, spread over the steps between two.
  double point_bytes() const {
    if (job->durable_every() == 0) return 0;
    const double generation = double(tiers().resident_bytes()) / (job->undo() ? 2 : 1);
    return generation / job->durable_every();
  }
  double written_per_day() const {
    if (tiers().mean_step_seconds() <= 0) return 0;
    const double step_bytes =
        double(tiers().streamed_bytes()) + point_bytes() + double(tiers().window().version_bytes());
    return step_bytes / tiers().mean_step_seconds() * kSecondsPerDay;
  }
};

std::vector<NodePlan> PlansOf(const std::vector<rpc::NodeStatus>& nodes, const std::string& job) {
  std::vector<NodePlan> plans;
  for (const rpc::NodeStatus& node : nodes) {
    if (!node.status.ok()) continue;
    for (const v1::JobStatus& entry : node.status->jobs()) {
      if (entry.name() == job) plans.push_back({node.status->node(), &entry});
    }
  }
  return plans;
}

std::string Seconds(double seconds) {
  return seconds > 0 ? fmt::format("{:.2f} s", seconds) : std::string("-");
}

// "1.25 s of 64": over how many steps.
std::string MeanStep(const v1::JobTiers& tiers) {
  if (tiers.timed_steps() == 0) return "-";
  return fmt::format("{:.2f} s of {}", tiers.mean_step_seconds(), tiers.timed_steps());
}

std::string Speed(double bytes_per_s) {
  return bytes_per_s > 0 ? fmt::format("{:.2f} GB/s", bytes_per_s / 1e9) : std::string("-");
}

// Empty when all served copies are in memory.
std::string WindowText(const std::vector<NodePlan>& plans) {
  Table table({"NODE", ">COPIES", ">IN MEMORY AT A TIME", ">WRITTEN A STEP", ">WRITTEN SO FAR",
               ">ASKED FOR", ">READ SO FAR"});
  bool any = false;
  for (const NodePlan& plan : plans) {
    const v1::CopyWindow& window = plan.tiers().window();
    if (window.slots() == 0) continue;
    any = true;
    table.AddRow({plan.node, std::to_string(window.copies()), std::to_string(window.slots()),
                  ShortBytes(window.version_bytes()), ShortBytes(window.written_bytes()),
                  std::to_string(window.wants()), ShortBytes(window.read_bytes())});
  }
  if (!any) return "";
  return fmt::format(
      "\nServed copies do not fit into memory; workers wait for those that are on disk:\n\n{}",
      table.Render());
}

}  // namespace

bool HasJob(const std::vector<rpc::NodeStatus>& nodes, const std::string& job) {
  return !PlansOf(nodes, job).empty();
}

std::string PlanText(const std::vector<rpc::NodeStatus>& nodes, const std::string& job) {
  Table bytes({"NODE", ">SERVED", ">STATE IN MEMORY", ">STAGING", ">INBOXES, SUMS",
               ">STATE ON DISK", ">READ A STEP", ">WRITTEN A STEP", ">OF POINTS"});
  Table times({"NODE", ">DISK SO FAR", ">PREDICTED UPDATE", ">LAST STEP", ">MEAN STEP",
               ">READ AHEAD", ">WASTED", ">WAITS", ">WRITTEN A DAY"});
  const std::vector<NodePlan> plans = PlansOf(nodes, job);
  for (const NodePlan& plan : plans) {
    const v1::JobStatus& status = *plan.job;
    const v1::JobTiers& tiers = plan.tiers();
    const auto points = static_cast<uint64_t>(plan.point_bytes());
    bytes.AddRow({plan.node, ShortBytes(status.served_bytes()), ShortBytes(tiers.resident_bytes()),
                  ShortBytes(status.staging_bytes()),
                  ShortBytes(status.inbox_bytes() + status.overflow_bytes() + status.held_bytes()),
                  ShortBytes(tiers.spilled_bytes()), ShortBytes(tiers.streamed_bytes()),
                  ShortBytes(tiers.streamed_bytes()), ShortBytes(points)});
    times.AddRow({plan.node, Speed(plan.bytes_per_s()), Seconds(plan.predicted_seconds()),
                  Seconds(tiers.last_step_seconds()), MeanStep(tiers),
                  fmt::format("{} of {}", tiers.read_ahead(), tiers.loads()),
                  std::to_string(tiers.wasted()), std::to_string(tiers.waits()),
                  tiers.timed_steps() == 0
                      ? std::string("-")
                      : ShortBytes(static_cast<uint64_t>(plan.written_per_day()))});
  }
  return fmt::format(
      "job {}\n\n{}\n{}\n"
      "PREDICTED UPDATE: what a step reads and writes, at the speed of the disk so far (both ways "
      "together).\nLAST STEP: from the first worker's begin to the decision, compute included. "
      "MEAN "
      "STEP: from one\ndecision to the next, over the last steps. WAITS: updates that found their "
      "state still on disk. WRITTEN A\nDAY: at the pace of the mean step; '-' until two steps are "
      "over.\n{}",
      Printable(job), bytes.Render(), times.Render(), WindowText(plans));
}

nlohmann::ordered_json PlanJson(const std::vector<rpc::NodeStatus>& nodes, const std::string& job) {
  nlohmann::ordered_json json = {{"job", job}, {"nodes", nlohmann::ordered_json::array()}};
  for (const NodePlan& plan : PlansOf(nodes, job)) {
    const v1::JobTiers& tiers = plan.tiers();
    json["nodes"].push_back({{"node", plan.node},
                             {"served_bytes", plan.job->served_bytes()},
                             {"resident_bytes", tiers.resident_bytes()},
                             {"staging_bytes", plan.job->staging_bytes()},
                             {"spilled_bytes", tiers.spilled_bytes()},
                             {"step_read_bytes", tiers.streamed_bytes()},
                             {"step_written_bytes", tiers.streamed_bytes()},
                             {"point_written_bytes_per_step", plan.point_bytes()},
                             {"disk_bytes_per_s", plan.bytes_per_s()},
                             {"predicted_update_seconds", plan.predicted_seconds()},
                             {"last_step_seconds", tiers.last_step_seconds()},
                             {"mean_step_seconds", tiers.mean_step_seconds()},
                             {"timed_steps", tiers.timed_steps()},
                             {"loads", tiers.loads()},
                             {"read_ahead", tiers.read_ahead()},
                             {"wasted", tiers.wasted()},
                             {"waits", tiers.waits()},
                             {"read_bytes", tiers.read_bytes()},
                             {"written_bytes", tiers.written_bytes()},
                             {"window_slots", tiers.window().slots()},
                             {"window_copies", tiers.window().copies()},
                             {"window_wants", tiers.window().wants()},
                             {"window_read_bytes", tiers.window().read_bytes()},
                             {"window_written_bytes", tiers.window().written_bytes()},
                             {"written_bytes_per_day", plan.written_per_day()}});
  }
  return json;
}

}  // namespace luwu::cli
