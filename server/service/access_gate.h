// Refuses what a caller's certificate, or user, does not entitle it to; there is none without
// [tls]. Twice for each call: its method and the caller's role before anything of the request is
// read (by gRPC, through MakeMethodGate), and then the job that the request names (by every
// handler, through Admit). Every refusal is a line in the log, "access_denied".
//
// Owned by the daemon, outlives its servers. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <google/protobuf/message.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/config/access_rule.h"
#include "server/service/denial_log.h"
#include "server/service/owner.h"
#include "server/service/rpc_rules.h"

namespace luwu {

class AccessGate {
 public:
  // "" when there is no such session, or its job is gone.
  using JobOfSession = std::function<std::string(uint64_t session_id)>;

  AccessGate(std::vector<AccessRule> rules, JobOfSession job_of_session);

  // Both: kPermission.
  Status CheckMethod(const grpc::AuthContext& caller, std::string_view method);
  Status CheckJob(const grpc::AuthContext& caller, const google::protobuf::Message& request);

  // The entry of a user who has connected to the local socket, as its identity; empty: there is
  // none, which is noted as a refusal.
  std::string AdmitUser(const CallerNames& user);
  std::vector<std::string> LocalIdentities() const;

  // For answers that are about many jobs.
  bool MaySee(const grpc::AuthContext& caller, const std::string& job) const;
  // What an identity has: itself, and operators of all jobs.
  bool MaySeeUse(const grpc::AuthContext& caller, const std::string& identity) const;

  // Of an admitted caller.
  Owner OwnerOf(const grpc::AuthContext& caller) const;

 private:
  std::string JobNamedBy(const RpcRule& rule, const google::protobuf::Message& request) const;
  Status Refuse(const CallerNames& names, std::string_view method, const std::string& job,
                const std::string& why);

  const std::vector<AccessRule> rules_;
  const JobOfSession job_of_session_;
  std::map<std::string, const RpcRule*, std::less<>> by_request_;  // by the request's full name
  DenialLog log_;
};

// For ServerCredentials::SetAuthMetadataProcessor.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeMethodGate(AccessGate* gate);
// Of connections that are all by users whose entry is that of `identity`. With nothing else than
// these connections may it be used.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeLocalGate(AccessGate* gate, std::string identity);

}  // namespace luwu
