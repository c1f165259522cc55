#include "common/rpc/status_json.h"

#include <algorithm>

namespace luwu::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json SingularJson(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->GetEnum(message, field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(reflection->GetMessage(message, field));
  }
  return nullptr;
}

// Protobuf's reflection reads repeated fields by element; only these kinds occur in status
// messages, so a repeated field of another kind is printed as an empty list.
Json RepeatedJson(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  Json list = Json::array();
  for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      list.push_back(MessageJson(reflection->GetRepeatedMessage(message, field, i)));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      list.push_back(reflection->GetRepeatedString(message, field, i));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      list.push_back(reflection->GetRepeatedUInt64(message, field, i));
    }
  }
  return list;
}

}  // namespace

Json MessageJson(const Message& message) {
  const google::protobuf::Descriptor* descriptor = message.GetDescriptor();
  Json object = Json::object();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    object[field->name()] =
        field->is_repeated() ? RepeatedJson(message, field) : SingularJson(message, field);
  }
  return object;
}

v1::Severity OverallSeverity(const std::vector<NodeStatus>& nodes) {
  v1::Severity worst = v1::SEVERITY_OK;
  for (const NodeStatus& node : nodes) {
    worst = std::max(worst, node.status.ok() ? node.status->overall() : v1::SEVERITY_ERR);
  }
  return worst;
}

Json StatusJson(const std::vector<NodeStatus>& nodes) {
  Json list = Json::array();
  for (const NodeStatus& node : nodes) {
    Json entry = {{"name", node.name}, {"address", node.address}};
    entry["error"] = node.status.ok() ? Json(nullptr) : Json(ToString(node.status.status()));
    entry["status"] = node.status.ok() ? MessageJson(*node.status) : Json(nullptr);
    list.push_back(std::move(entry));
  }
  return {{"overall", v1::Severity_Name(OverallSeverity(nodes))}, {"nodes", std::move(list)}};
}

std::string JsonText(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace luwu::rpc
