// `luwuctl plan JOB`: where a job's state is on each node, what a step moves, and how long that
// takes. Pure functions of the reports.
#pragma once

#include <string>
#include <vector>

#include "common/rpc/status_json.h"

namespace luwu::cli {

// Whether some node that answers has the job.
bool HasJob(const std::vector<rpc::NodeStatus>& nodes, const std::string& job);
std::string PlanText(const std::vector<rpc::NodeStatus>& nodes, const std::string& job);
nlohmann::ordered_json PlanJson(const std::vector<rpc::NodeStatus>& nodes, const std::string& job);

}  // namespace luwu::cli
