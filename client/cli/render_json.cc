#include "client/cli/render.h"

namespace luwu::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ErrorJson(const Status& status) {
  return status.ok() ? Json(nullptr) : Json(ToString(status));
}

Json NodeJson(const rpc::NodeStatus& node) {
  return {{"name", node.name},
          {"address", node.address},
          {"error", ErrorJson(node.status.ok() ? OkStatus() : node.status.status())}};
}

template <typename Messages>
Json ListJson(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(rpc::MessageJson(message));
  return list;
}

Json TopJson(v1::Severity overall, Json nodes) {
  return {{"overall", v1::Severity_Name(overall)}, {"nodes", std::move(nodes)}};
}

}  // namespace

Json JobsJson(const std::vector<rpc::NodeStatus>& nodes) {
  Json list = Json::array();
  for (const rpc::NodeStatus& node : nodes) {
    Json entry = NodeJson(node);
    entry["jobs"] = node.status.ok() ? ListJson(node.status->jobs()) : Json::array();
    list.push_back(std::move(entry));
  }
  return TopJson(rpc::OverallSeverity(nodes), std::move(list));
}

Json HealthJson(const std::vector<HealthReport>& reports) {
  Json list = Json::array();
  std::vector<rpc::NodeStatus> nodes;
  for (const HealthReport& report : reports) {
    Json entry = NodeJson(report.node);
    entry["health"] = report.health;
    entry["checks"] =
        report.node.status.ok() ? ListJson(report.node.status->checks()) : Json::array();
    list.push_back(std::move(entry));
    nodes.push_back(report.node);
  }
  return TopJson(rpc::OverallSeverity(nodes), std::move(list));
}

Json DeleteJson(const std::string& job, const std::vector<DeleteReport>& reports) {
  Json list = Json::array();
  for (const DeleteReport& report : reports) {
    list.push_back({{"name", report.name},
                    {"address", report.address},
                    {"error", ErrorJson(report.status)},
                    {"deleted", report.status.ok()}});
  }
  return {{"job", job}, {"nodes", std::move(list)}};
}

}  // namespace luwu::cli
