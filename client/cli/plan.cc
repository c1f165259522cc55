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
    if (tiers().last_step_seconds() <= 0) return 0;
    return (double(tiers().streamed_bytes()) + point_bytes()) / tiers().last_step_seconds() *
           kSecondsPerDay;
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

std::string Speed(double bytes_per_s) {
  return bytes_per_s > 0 ? fmt::format("{:.2f} GB/s", bytes_per_s / 1e9) : std::string("-");
}

}  // namespace

bool HasJob(const std::vector<rpc::NodeStatus>& nodes, const std::string& job) {
  return !PlansOf(nodes, job).empty();
}

std::string PlanText(const std::vector<rpc::NodeStatus>& nodes, const std::string& job) {
  Table bytes({"NODE", ">SERVED", ">STATE IN MEMORY", ">STAGING", ">INBOXES, SUMS",
               ">STATE ON DISK", ">READ A STEP", ">WRITTEN A STEP", ">OF POINTS"});
  Table times({"NODE", ">DISK SO FAR", ">PREDICTED UPDATE", ">LAST STEP", ">READ AHEAD", ">WASTED",
               ">WAITS", ">WRITTEN A DAY"});
  for (const NodePlan& plan : PlansOf(nodes, job)) {
    const v1::JobStatus& status = *plan.job;
    const v1::JobTiers& tiers = plan.tiers();
    const auto points = static_cast<uint64_t>(plan.point_bytes());
    bytes.AddRow({plan.node, ShortBytes(status.served_bytes()), ShortBytes(tiers.resident_bytes()),
                  ShortBytes(status.staging_bytes()),
                  ShortBytes(status.inbox_bytes() + status.overflow_bytes() + status.held_bytes()),
                  ShortBytes(tiers.spilled_bytes()), ShortBytes(tiers.streamed_bytes()),
                  ShortBytes(tiers.streamed_bytes()), ShortBytes(points)});
    times.AddRow({plan.node, Speed(plan.bytes_per_s()), Seconds(plan.predicted_seconds()),
                  Seconds(tiers.last_step_seconds()),
                  fmt::format("{} of {}", tiers.read_ahead(), tiers.loads()),
                  std::to_string(tiers.wasted()), std::to_string(tiers.waits()),
                  ShortBytes(static_cast<uint64_t>(plan.written_per_day()))});
  }
  return fmt::format(
      "job {}\n\n{}\n{}\nPREDICTED UPDATE: what a step reads and writes, at the speed of the disk "
      "so "
      "far (both ways together).\nLAST STEP: from the first worker's begin to the decision, "
      "compute "
      "included. WAITS: updates that found\ntheir state still on disk. WRITTEN A DAY: at the pace "
      "of "
      "the last step.\n",
      Printable(job), bytes.Render(), times.Render());
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
                             {"loads", tiers.loads()},
                             {"read_ahead", tiers.read_ahead()},
                             {"wasted", tiers.wasted()},
                             {"waits", tiers.waits()},
                             {"read_bytes", tiers.read_bytes()},
                             {"written_bytes", tiers.written_bytes()},
                             {"written_bytes_per_day", plan.written_per_day()}});
  }
  return json;
}

}  // namespace luwu::cli
