#include "tests/mutation/request_mutator.h"

#include <array>
#include <limits>
#include <memory>
#include <vector>

namespace luwu {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::Reflection;

constexpr int kDepthMax = 4;
constexpr size_t kDamagesMax = 6;

constexpr std::array<uint64_t, 16> kNumbers = {0,
                                               1,
                                               2,
                                               3,
                                               7,
                                               255,
                                               256,
                                               65'535,
                                               1ULL << 20,
                                               (1ULL << 31) - 1,
                                               1ULL << 31,
                                               (1ULL << 32) - 1,
                                               1ULL << 32,
                                               1ULL << 63,
                                               (1ULL << 63) - 1,
                                               ~0ULL};
constexpr std::array<double, 10> kReals = {0.0,
                                           -0.0,
                                           1.0,
                                           -1.0,
                                           1e-45,
                                           1e308,
                                           std::numeric_limits<double>::infinity(),
                                           -std::numeric_limits<double>::infinity(),
                                           std::numeric_limits<double>::quiet_NaN(),
                                           0.001};

std::unique_ptr<Message> New(const Descriptor& type) {
  return std::unique_ptr<Message>(MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

bool Contains(const FieldDescriptor& field, const char* part) {
  return field.name().find(part) != std::string::npos;
}

bool IsPath(const FieldDescriptor& field) {
  return field.name() == "path" || field.name() == "folder" || field.name() == "draft" ||
         field.name() == "shm_path";
}

}  // namespace

void RequestMutator::SetValid(const Message& request) {
  valid_[request.GetDescriptor()->full_name()] = request.SerializeAsString();
}

std::string RequestMutator::Next(const Descriptor& type) {
  const std::unique_ptr<Message> message = New(type);
  const auto valid = valid_.find(type.full_name());
  if (valid != valid_.end() && Chance(60)) {
    message->ParseFromString(valid->second);
    const auto any = static_cast<int>(Below(static_cast<uint64_t>(type.field_count())));
    if (Chance(70)) FillField(message.get(), *type.field(any), 0);
  } else {
    Fill(message.get(), 0);
  }
  const std::string whole = message->SerializeAsString();
  if (Chance(70)) return whole;  // most of what is damaged is refused by the parser already
  std::string damaged = Damage(whole);
  // Damage may have moved a text into a field that is a path.
  const std::unique_ptr<Message> read = New(type);
  (void)read->ParsePartialFromString(damaged);
  return StaysInSandbox(*read) ? damaged : whole;
}

uint64_t RequestMutator::Number(const Field& field) {
  if (Chance(75)) {
    if (Contains(field, "session")) return facts_.session_id;
    if (Contains(field, "epoch") || field.name() == "round") return facts_.epoch;
    if (Contains(field, "fingerprint")) return facts_.nodes_fingerprint;
    if (Contains(field, "timeout")) return Below(50);
    if (Contains(field, "step")) return Below(3);
  }
  if (Contains(field, "timeout")) return Below(2000);  // answers are waited for
  return Chance(80) ? kNumbers[Below(kNumbers.size())] : random_();
}

std::string RequestMutator::Text(const Field& field) {
  if (IsPath(field)) return Chance(90) ? facts_.sandbox + "/" + std::to_string(Below(8)) : "";
  if (Chance(60) && (field.name() == "job" || field.name() == "name")) return facts_.job;
  switch (Below(7)) {
    case 0:
      return "";
    case 1:
      return facts_.job;
    case 2:
      return std::string(1 + Below(4000), 'x');
    case 3:
      return std::string("a\0b\n\"\\", 6);
    case 4:
      return "\xf0\x9f\x92\xa9";
    case 5:
      return "node0";
    default:
      return "%s%n {} {0}";
  }
}

void RequestMutator::SetScalar(Message* message, const Field& field) {
  const Reflection& reflection = *message->GetReflection();
  const bool many = field.is_repeated();
  const auto set = [&](auto one, auto add, auto value) {
    many ? (reflection.*add)(message, &field, value) : (reflection.*one)(message, &field, value);
  };
  using R = Reflection;
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT32:
      return set(&R::SetInt32, &R::AddInt32, static_cast<int32_t>(Number(field)));
    case Field::CPPTYPE_INT64:
      return set(&R::SetInt64, &R::AddInt64, static_cast<int64_t>(Number(field)));
    case Field::CPPTYPE_UINT32:
      return set(&R::SetUInt32, &R::AddUInt32, static_cast<uint32_t>(Number(field)));
    case Field::CPPTYPE_UINT64:
      return set(&R::SetUInt64, &R::AddUInt64, Number(field));
    case Field::CPPTYPE_DOUBLE:
      return set(&R::SetDouble, &R::AddDouble, kReals[Below(kReals.size())]);
    case Field::CPPTYPE_FLOAT:
      return set(&R::SetFloat, &R::AddFloat, static_cast<float>(kReals[Below(kReals.size())]));
    case Field::CPPTYPE_BOOL:
      return set(&R::SetBool, &R::AddBool, Chance(50));
    case Field::CPPTYPE_ENUM:
      return set(&R::SetEnumValue, &R::AddEnumValue,
                 Chance(80) ? static_cast<int>(Below(6)) : static_cast<int>(random_()));
    case Field::CPPTYPE_STRING: {
      const bool bytes = field.type() == Field::TYPE_BYTES;
      std::string text = bytes ? std::string(Below(3) * 4 * Below(300), '\x3f') : Text(field);
      return set(&R::SetString, &R::AddString, std::move(text));
    }
    case Field::CPPTYPE_MESSAGE:
      return;
  }
}

void RequestMutator::FillField(Message* message, const Field& field, int depth) {
  const Reflection& reflection = *message->GetReflection();
  reflection.ClearField(message, &field);
  const uint64_t count = field.is_repeated() ? Below(4) : 1;
  for (uint64_t i = 0; i < count; ++i) {
    if (field.cpp_type() != Field::CPPTYPE_MESSAGE) {
      SetScalar(message, field);
    } else if (depth < kDepthMax) {
      Fill(field.is_repeated() ? reflection.AddMessage(message, &field)
                               : reflection.MutableMessage(message, &field),
           depth + 1);
    }
  }
}

void RequestMutator::Fill(Message* message, int depth) {
  const Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (Chance(80)) FillField(message, *type.field(i), depth);
  }
}

std::string RequestMutator::Damage(std::string bytes) {
  for (uint64_t i = 1 + Below(kDamagesMax); i > 0; --i) {
    const size_t at = bytes.empty() ? 0 : Below(bytes.size());
    switch (Below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1U << Below(8)));
        break;
      case 1:
        bytes.insert(at, 1 + Below(9), static_cast<char>(random_()));
        break;
      case 2:
        bytes.erase(at, 1 + Below(9));
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:  // a part of it again: repeated fields, or messages inside each other
        bytes.insert(at, bytes.substr(at, 1 + Below(64)));
        break;
      default:  // a length that no message has
        bytes.insert(at, "\xff\xff\xff\xff\x0f");
        break;
    }
  }
  return bytes;
}

bool RequestMutator::StaysInSandbox(const Message& message) const {
  std::vector<const FieldDescriptor*> fields;
  const Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
        const Message& inner = field->is_repeated()
                                   ? reflection.GetRepeatedMessage(message, field, i)
                                   : reflection.GetMessage(message, field);
        if (!StaysInSandbox(inner)) return false;
      } else if (field->cpp_type() == Field::CPPTYPE_STRING && IsPath(*field)) {
        const std::string text = field->is_repeated()
                                     ? reflection.GetRepeatedString(message, field, i)
                                     : reflection.GetString(message, field);
        const bool inside = text.empty() || text.rfind(facts_.sandbox + "/", 0) == 0;
        if (!inside || text.find("..") != std::string::npos) return false;
      }
    }
  }
  return true;
}

}  // namespace luwu
