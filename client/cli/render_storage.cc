// What `luwuctl status` says about data directories and durable points.
#include <algorithm>
#include <map>
#include <optional>

#include "client/cli/render.h"
#include "client/cli/table.h"

namespace luwu::cli {
namespace {

// A job's points over all nodes: the oldest of the newest, should one not have heard yet.
struct Points {
  uint32_t every = 0;
  std::string level;
  std::optional<uint64_t> step;
  bool missing = false;
  uint64_t stored_bytes = 0;  // of all nodes

  void Add(const v1::JobStatus& job) {
    stored_bytes += job.stored_bytes();
    if (job.durability().empty()) return;  // recovering or lost: only that is known
    every = job.durable_every();
    level = job.durability();
    missing = missing || !job.has_durable_step();
    if (job.has_durable_step()) step = std::min(step.value_or(UINT64_MAX), job.durable_step());
  }
};

std::string PointsTable(const std::vector<rpc::NodeStatus>& nodes) {
  std::map<std::string, Points> jobs;
  for (const rpc::NodeStatus& node : nodes) {
    if (!node.status.ok()) continue;
    for (const v1::JobStatus& job : node.status->jobs()) {
      const bool kept = job.durable_every() > 0 || job.has_durable_step();
      if (kept || job.stored_bytes() > 0) jobs[job.name()].Add(job);
    }
  }
  Table table({"JOB", ">POINT EVERY", "DURABILITY", ">NEWEST POINT", ">ON DISK"});
  for (const auto& [name, points] : jobs) {
    const bool known = points.step && !points.missing;
    table.AddRow({name, points.every == 0 ? "-" : std::to_string(points.every),
                  points.level.empty() ? "-" : points.level,
                  known ? std::to_string(*points.step) : "-", ShortBytes(points.stored_bytes)});
  }
  return table.empty() ? "" : "\n" + table.Render();
}

}  // namespace

std::string StorageTables(const std::vector<rpc::NodeStatus>& nodes) {
  Table table({"NODE", "ENGINE", ">USED", ">BUDGET", ">FREE", ">READ", ">WRITTEN", "DIRECTORY"});
  for (const rpc::NodeStatus& node : nodes) {
    if (!node.status.ok() || !node.status->has_storage()) continue;
    const v1::StorageStatus& storage = node.status->storage();
    table.AddRow({node.name, storage.engine() + (storage.direct() ? "" : ", cached"),
                  ShortBytes(storage.used_bytes()), ShortBytes(storage.budget_bytes()),
                  ShortBytes(storage.free_bytes()), ShortBytes(storage.read_bytes()),
                  ShortBytes(storage.written_bytes()), storage.path()});
  }
  return PointsTable(nodes) + (table.empty() ? "" : "\n" + table.Render());
}

}  // namespace luwu::cli
