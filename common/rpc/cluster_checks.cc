#include "common/rpc/cluster_checks.h"

#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace luwu::rpc {
namespace {

bool Answers(const NodeStatus& node) { return node.serves_shards && node.status.ok(); }

const v1::JobStatus* FindJob(const NodeStatus& node, const std::string& name) {
  for (const v1::JobStatus& job : node.status->jobs()) {
    if (job.name() == name) return &job;
  }
  return nullptr;
}

// A job that is being made, loaded or brought back is not on all nodes at the same moment.
bool GoesOn(const v1::JobStatus& job) { return job.state() == "training"; }

v1::Check PartLost(const v1::JobStatus& job, const std::vector<std::string>& without) {
  v1::Check check;
  check.set_name("JOB_PART_LOST");
  check.set_severity(v1::SEVERITY_ERR);
  check.set_summary(
      fmt::format("job {} cannot go on: node {} has no part of it; the daemon was "
                  "restarted and had not kept it",
                  job.name(), fmt::join(without, ", ")));
  check.set_hint(
      fmt::format("delete it (luwuctl delete {}) and start it again; durable points "
                  "(durable_every) and a data directory on every node keep a job over restarts",
                  job.name()));
  return check;
}

}  // namespace

void AddClusterChecks(std::vector<NodeStatus>* nodes) {
  std::map<std::string, NodeStatus*> holders;  // the first of each job
  for (NodeStatus& node : *nodes) {
    if (!Answers(node)) continue;
    for (const v1::JobStatus& job : node.status->jobs()) {
      if (GoesOn(job)) holders.emplace(job.name(), &node);
    }
  }
  for (const auto& [name, holder] : holders) {
    std::vector<std::string> without;
    for (const NodeStatus& node : *nodes) {
      if (Answers(node) && FindJob(node, name) == nullptr) without.push_back(node.name);
    }
    if (without.empty()) continue;
    const v1::Check check = PartLost(*FindJob(*holder, name), without);
    *holder->status->add_checks() = check;
    holder->status->set_overall(std::max(holder->status->overall(), check.severity()));
  }
}

}  // namespace luwu::rpc
