#include "server/service/access_gate.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <grpc/grpc_security_constants.h>

#include "common/base/check.h"
#include "luwu/v1/jobs.pb.h"

namespace luwu {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

std::vector<std::string> Values(const grpc::AuthContext& caller, const char* property) {
  std::vector<std::string> out;
  for (const grpc::string_ref& value : caller.FindPropertyValues(property)) {
    out.emplace_back(value.data(), value.size());
  }
  return out;
}

// A property that LocalGate sets. What TLS sets has other names, whatever a certificate holds.
constexpr char kLocalIdentity[] = "luwu_local_identity";

CallerNames NamesOf(const grpc::AuthContext& caller) {
  if (!caller.IsPeerAuthenticated()) return {};
  if (auto local = Values(caller, kLocalIdentity); !local.empty()) {
    return {.local = std::move(local)};
  }
  return {Values(caller, GRPC_PEER_URI_PROPERTY_NAME), Values(caller, GRPC_PEER_DNS_PROPERTY_NAME)};
}

// "/luwu.v1.JobService/Delete"; null for what is not LuWu's own.
const MethodDescriptor* MethodOf(std::string_view path) {
  std::string name(path.substr(1));
  name[name.find('/')] = '.';
  return DescriptorPool::generated_pool()->FindMethodByName(name);
}

std::string TextField(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  return message.GetReflection()->GetString(message, field);
}

class MethodGate : public grpc::AuthMetadataProcessor {
 public:
  explicit MethodGate(AccessGate* gate) : gate_(gate) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::string_view method =
        path == metadata.end() ? "" : std::string_view(path->second.data(), path->second.size());
    const Status status = gate_->CheckMethod(*context, method);
    if (status.ok()) return grpc::Status::OK;
    return {grpc::StatusCode::PERMISSION_DENIED, MessageOf(status)};
  }

 private:
  AccessGate* const gate_;
};

// A connection has one context. It is written here only, before the first call of the connection is
// let through, and under the lock: whoever reads it later reads what does not change any more.
class LocalGate final : public MethodGate {
 public:
  LocalGate(AccessGate* gate, std::string identity)
      : MethodGate(gate), identity_(std::move(identity)) {}

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override {
    {
      MutexLock lock(mutex_);
      if (context->FindPropertyValues(kLocalIdentity).empty()) {
        context->AddProperty(kLocalIdentity, identity_);
      }
    }
    return MethodGate::Process(metadata, context, consumed, response);
  }

 private:
  const std::string identity_;
  Mutex mutex_;
};

}  // namespace

AccessGate::AccessGate(std::vector<AccessRule> rules, JobOfSession job_of_session)
    : rules_(std::move(rules)), job_of_session_(std::move(job_of_session)) {
  for (const RpcRule& rule : RpcRules()) {
    if (const MethodDescriptor* method = MethodOf(rule.method)) {
      by_request_[method->input_type()->full_name()] = &rule;
    }
  }
}

Status AccessGate::Refuse(const CallerNames& names, std::string_view method, const std::string& job,
                          const std::string& why) {
  log_.Add({.identity = names.text(), .method = std::string(method), .job = job, .why = why});
  return MakeError(ErrorCode::kPermission, why);
}

Status AccessGate::CheckMethod(const grpc::AuthContext& caller, std::string_view method) {
  const CallerNames names = NamesOf(caller);
  const AccessRule* rule = FindRule(rules_, names);
  if (rule == nullptr) {
    return Refuse(
        names, method, "",
        fmt::format("no [[access]] entry of this daemon names the certificate ({})", names.text()));
  }
  const RpcRule* rpc = FindRpcRule(method);
  if (rpc == nullptr) return Refuse(names, method, "", "this daemon has no such call");
  if (Allows(*rpc, rule->role)) return OkStatus();
  return Refuse(
      names, method, "",
      fmt::format("{} is a{} {}; {} takes a{} {}", rule->identity,
                  rule->role == Role::kObserver || rule->role == Role::kOperator ? "n" : "",
                  RoleName(rule->role), method,
                  rpc->least == Role::kObserver || rpc->least == Role::kOperator ? "n" : "",
                  RoleName(rpc->least)));
}

std::string AccessGate::JobNamedBy(const RpcRule& rule, const Message& request) const {
  const FieldDescriptor* field = nullptr;
  switch (rule.job) {
    case JobIn::kNowhere:
      return "";
    case JobIn::kJob:
      return TextField(request, "job");
    case JobIn::kSpec:
      field = request.GetDescriptor()->FindFieldByName("spec");
      return TextField(request.GetReflection()->GetMessage(request, field), "name");
    case JobIn::kSession:
      field = request.GetDescriptor()->FindFieldByName("session_id");
      return job_of_session_(request.GetReflection()->GetUInt64(request, field));
  }
  return "";
}

Status AccessGate::CheckJob(const grpc::AuthContext& caller, const Message& request) {
  const CallerNames names = NamesOf(caller);
  const auto found = by_request_.find(request.GetDescriptor()->full_name());
  if (found == by_request_.end()) {
    return Refuse(names, request.GetDescriptor()->full_name(), "", "this daemon has no such call");
  }
  const RpcRule& rpc = *found->second;
  if (rpc.job == JobIn::kNowhere) return OkStatus();
  const std::string job = JobNamedBy(rpc, request);
  // No such session: the handler says so, and there is nothing that it could touch.
  if (rpc.job == JobIn::kSession && job.empty()) return OkStatus();
  const AccessRule* rule = FindRule(rules_, names);
  if (rule != nullptr && MayTouch(*rule, job)) return OkStatus();
  return Refuse(names, rpc.method, job,
                fmt::format("the jobs of {} in [[access]] do not include '{}'", names.text(), job));
}

std::string AccessGate::AdmitUser(const CallerNames& user) {
  const AccessRule* rule = FindRule(rules_, user);
  if (rule != nullptr) return rule->identity;
  // The refusal is the line in the log: the connection ends before a call could be answered.
  static_cast<void>(
      Refuse(user, "", "",
             fmt::format("no [[access]] entry of this daemon names the user or a group of it ({})",
                         fmt::join(user.local, " "))));
  return "";
}

std::vector<std::string> AccessGate::LocalIdentities() const {
  std::vector<std::string> identities;
  for (const AccessRule& rule : rules_) {
    if (IsLocalIdentity(rule.identity)) identities.push_back(rule.identity);
  }
  return identities;
}

bool AccessGate::MaySee(const grpc::AuthContext& caller, const std::string& job) const {
  const AccessRule* rule = FindRule(rules_, NamesOf(caller));
  return rule != nullptr && MayTouch(*rule, job);
}

bool AccessGate::MaySeeUse(const grpc::AuthContext& caller, const std::string& identity) const {
  const AccessRule* rule = FindRule(rules_, NamesOf(caller));
  if (rule == nullptr) return false;
  const bool all = std::find(rule->jobs.begin(), rule->jobs.end(), "*") != rule->jobs.end();
  return rule->identity == identity || (rule->role == Role::kOperator && all);
}

Owner AccessGate::OwnerOf(const grpc::AuthContext& caller) const {
  const AccessRule* rule = FindRule(rules_, NamesOf(caller));
  LUWU_CHECK(rule != nullptr, "callers without an entry are refused before");
  return {rule->identity, rule->quota};
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeMethodGate(AccessGate* gate) {
  return std::make_shared<MethodGate>(gate);
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeLocalGate(AccessGate* gate, std::string identity) {
  return std::make_shared<LocalGate>(gate, std::move(identity));
}

}  // namespace luwu
