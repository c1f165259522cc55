// What luwuctl prints: tables for people, JSON for programs. Pure functions of the reports.
#pragma once

#include <string>
#include <vector>

#include "client/cli/cluster.h"
#include "common/rpc/status_json.h"

namespace luwu::cli {

std::string StatusTables(const std::vector<rpc::NodeStatus>& nodes);
std::string JobTables(const std::vector<rpc::NodeStatus>& nodes);
// Data directories and durable points; empty when there are none.
std::string StorageTables(const std::vector<rpc::NodeStatus>& nodes);
std::string HealthTable(const std::vector<HealthReport>& reports);
std::string DeleteText(const std::string& job, const std::vector<DeleteReport>& reports);

nlohmann::ordered_json JobsJson(const std::vector<rpc::NodeStatus>& nodes);
nlohmann::ordered_json HealthJson(const std::vector<HealthReport>& reports);
nlohmann::ordered_json DeleteJson(const std::string& job, const std::vector<DeleteReport>& reports);

}  // namespace luwu::cli
