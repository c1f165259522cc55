// The JSON form of status messages, one for `luwuctl -o json` and luwu_status_json(), so that both
// print the same fields. Field names are the proto field names, enums print as their proto names,
// integers as JSON numbers (also 64-bit ones), and every field is present, also at its default.
// Thread-safe; nothing here fails: text that is not UTF-8 is printed with replacement characters.
#pragma once

#include <string>
#include <vector>

#include <google/protobuf/message.h>
#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "luwu/v1/status.pb.h"

namespace luwu::rpc {

// What one daemon answered, or why it did not.
struct NodeStatus {
  std::string name;     // from the node list; empty when no list could be had
  std::string address;  // of its control plane
  StatusOr<v1::DaemonStatus> status;
  bool serves_shards = false;  // it has a weight in the node list
};

nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// ERR when a node did not answer, else the worst severity that a node reports.
v1::Severity OverallSeverity(const std::vector<NodeStatus>& nodes);

// {"overall": "SEVERITY_OK",
//  "nodes": [{"name", "address", "error": null or text, "status": null or DaemonStatus}]}
nlohmann::ordered_json StatusJson(const std::vector<NodeStatus>& nodes);

// `indent` < 0: one line.
std::string JsonText(const nlohmann::ordered_json& json, int indent);

}  // namespace luwu::rpc
