// The table of calls against what the services really have, by their descriptors.
#include "server/service/rpc_rules.h"

#include <filesystem>
#include <set>
#include <string>

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "luwu/v1/checkpoints.pb.h"
#include "luwu/v1/doctor.pb.h"
#include "luwu/v1/interchange.pb.h"
#include "luwu/v1/jobs.pb.h"
#include "luwu/v1/peers.pb.h"
#include "luwu/v1/sessions.pb.h"
#include "luwu/v1/status.pb.h"
#include "luwu/v1/steps.pb.h"
#include "luwu/v1/tensors.pb.h"

namespace luwu {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;

// So that the linker keeps every file's descriptors.
const Descriptor* const kLinked[] = {
    v1::CheckpointInfo::descriptor(),    v1::DiagnoseRequest::descriptor(),
    v1::ImportRequest::descriptor(),     v1::CreateOrJoinRequest::descriptor(),
    v1::ReportStepRequest::descriptor(), v1::OpenSessionRequest::descriptor(),
    v1::GetStatusRequest::descriptor(),  v1::BeginStepRequest::descriptor(),
    v1::LoadRequest::descriptor(),
};

// Of all files in proto/luwu/v1.
std::vector<const MethodDescriptor*> Methods() {
  EXPECT_EQ(std::size(kLinked), 9u);
  std::vector<const MethodDescriptor*> methods;
  for (const auto& entry : std::filesystem::directory_iterator(LUWU_PROTOS)) {
    const std::string name = "luwu/v1/" + entry.path().filename().string();
    const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(name);
    EXPECT_NE(file, nullptr) << name << ": add it to kLinked";
    for (int s = 0; file != nullptr && s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m));
      }
    }
  }
  return methods;
}

std::string PathOf(const MethodDescriptor& method) {
  return "/" + method.service()->full_name() + "/" + method.name();
}

JobIn PlaceOfJob(const Descriptor& request) {
  if (request.FindFieldByName("job") != nullptr) return JobIn::kJob;
  if (request.FindFieldByName("spec") != nullptr) return JobIn::kSpec;
  if (request.FindFieldByName("session_id") != nullptr) return JobIn::kSession;
  return JobIn::kNowhere;
}

TEST(RpcRulesTest, EveryMethodHasARuleThatKnowsWhereItsJobIs) {
  std::set<std::string> paths;
  for (const MethodDescriptor* method : Methods()) {
    const std::string path = PathOf(*method);
    paths.insert(path);
    const RpcRule* rule = FindRpcRule(path);
    ASSERT_NE(rule, nullptr) << path;
    EXPECT_EQ(rule->job, PlaceOfJob(*method->input_type())) << path;
  }
  EXPECT_EQ(paths.size(), 40u) << "a new call: is its role right, and does its handler ask Admit?";
  for (const RpcRule& rule : RpcRules()) {
    if (rule.method.starts_with("/grpc.")) continue;
    EXPECT_TRUE(paths.contains(std::string(rule.method))) << rule.method << " does not exist";
  }
}

// The gate finds a call's rule by the type of its request.
TEST(RpcRulesTest, NoTwoMethodsShareARequest) {
  std::set<std::string> requests;
  for (const MethodDescriptor* method : Methods()) {
    EXPECT_TRUE(requests.insert(method->input_type()->full_name()).second) << method->full_name();
  }
}

TEST(RpcRulesTest, PeersAreDaemonsAndNobodyElse) {
  for (const RpcRule& rule : RpcRules()) {
    const bool of_peers = rule.method.starts_with("/luwu.v1.PeerService/");
    EXPECT_EQ(Allows(rule, Role::kOperator), !of_peers) << rule.method;
    if (of_peers) {
      EXPECT_TRUE(Allows(rule, Role::kDaemon)) << rule.method;
      EXPECT_FALSE(Allows(rule, Role::kTrainer)) << rule.method;
    }
  }
  EXPECT_FALSE(Allows(*FindRpcRule("/luwu.v1.JobService/Delete"), Role::kDaemon));
  EXPECT_FALSE(Allows(*FindRpcRule("/luwu.v1.JobService/Delete"), Role::kObserver));
  EXPECT_TRUE(Allows(*FindRpcRule("/luwu.v1.JobService/ListNodes"), Role::kDaemon));
}

TEST(RpcRulesTest, WhatIsNotInTheTableHasNoRule) {
  for (const char* path : {"", "/", "/luwu.v1.JobService/", "/luwu.v1.JobService/delete",
                           "luwu.v1.JobService/Delete", "/luwu.v1.JobService/Delete/"}) {
    EXPECT_EQ(FindRpcRule(path), nullptr) << path;
  }
}

}  // namespace
}  // namespace luwu
