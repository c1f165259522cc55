// Sends mutated requests to every method of a daemon that runs, and reports as JSON how each was
// answered. Used by tests/system/test_mutated_requests.py.
//
//   mutate_rpcs ADDRESS VALID_JOB SANDBOX REQUESTS SEED
//
// VALID_JOB is a job of the daemon, whose spec is taken as the pattern of valid ones; its name is
// never sent. SANDBOX is a folder for what daemons write. Exit status 0: the daemon has answered
// all and answers still.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <nlohmann/json.hpp>

#include "common/rpc/channel.h"
#include "luwu/v1/checkpoints.pb.h"
#include "luwu/v1/doctor.pb.h"
#include "luwu/v1/interchange.pb.h"
#include "luwu/v1/jobs.grpc.pb.h"
#include "luwu/v1/peers.pb.h"
#include "luwu/v1/sessions.grpc.pb.h"
#include "luwu/v1/status.grpc.pb.h"
#include "luwu/v1/steps.pb.h"
#include "luwu/v1/tensors.grpc.pb.h"
#include "tests/mutation/request_mutator.h"

namespace luwu {
namespace {

using google::protobuf::MethodDescriptor;

constexpr uint64_t kCallMs = 10'000;
constexpr int kInFlightMax = 16;
constexpr uint64_t kRefreshEvery = 500;  // requests; some of them delete the job or end the session
constexpr uint64_t kEndsFrom = 100;      // so many before the next refresh
constexpr size_t kNotedMax = 20;
const char kTarget[] = "target";

std::vector<const MethodDescriptor*> Methods() {
  const google::protobuf::Descriptor* one_of_each_file[] = {
      v1::CreateCheckpointRequest::descriptor(),
      v1::ReadClockRequest::descriptor(),
      v1::ImportRequest::descriptor(),
      v1::ListNodesRequest::descriptor(),
      v1::ReportStepRequest::descriptor(),
      v1::HeartbeatRequest::descriptor(),
      v1::GetStatusRequest::descriptor(),
      v1::BeginStepRequest::descriptor(),
      v1::ReadRequest::descriptor()};
  std::vector<const MethodDescriptor*> methods;
  for (const auto* type : one_of_each_file) {
    for (int i = 0; i < type->file()->service_count(); ++i) {
      const auto* service = type->file()->service(i);
      for (int j = 0; j < service->method_count(); ++j) methods.push_back(service->method(j));
    }
  }
  return methods;
}

// What ends the job or the session that other requests are about.
bool EndsAll(const MethodDescriptor& method) {
  const auto* type = method.input_type();
  return type == v1::DeleteJobRequest::descriptor() ||
         type == v1::CloseSessionRequest::descriptor() ||
         type == v1::PrepareRollbackRequest::descriptor() ||
         type == v1::RollbackRequest::descriptor();
}

// How calls ended. Thread-safe.
class Tally {
 public:
  void Add(const std::string& method, const grpc::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++codes_[CodeName(status.error_code())];
    reached_[method] = reached_[method] || status.ok();
    const bool defect = status.error_code() == grpc::StatusCode::INTERNAL ||
                        status.error_code() == grpc::StatusCode::UNKNOWN;
    if (defect && noted_.size() < kNotedMax) noted_.insert(method + ": " + status.error_message());
    --in_flight_;
    changed_.notify_all();
  }
  void Enter() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return in_flight_ < kInFlightMax; });
    ++in_flight_;
  }
  void WaitForAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return in_flight_ == 0; });
  }
  nlohmann::json Report() const {
    std::vector<std::string> never;
    for (const auto& [method, ok] : reached_) {
      if (!ok) never.push_back(method);
    }
    return {
        {"methods", reached_.size()}, {"codes", codes_}, {"never_ok", never}, {"noted", noted_}};
  }

 private:
  static std::string CodeName(grpc::StatusCode code) {
    static const char* const kNames[] = {"OK",
                                         "CANCELLED",
                                         "UNKNOWN",
                                         "INVALID_ARGUMENT",
                                         "DEADLINE",
                                         "NOT_FOUND",
                                         "ALREADY_EXISTS",
                                         "PERMISSION_DENIED",
                                         "EXHAUSTED",
                                         "FAILED_PRECONDITION",
                                         "ABORTED",
                                         "OUT_OF_RANGE",
                                         "UNIMPLEMENTED",
                                         "INTERNAL",
                                         "UNAVAILABLE",
                                         "DATA_LOSS",
                                         "UNAUTHENTICATED"};
    return code >= 0 && code < static_cast<int>(std::size(kNames)) ? kNames[code] : "NONE";
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int in_flight_ = 0;
  std::map<std::string, uint64_t> codes_;
  std::map<std::string, bool> reached_;
  std::set<std::string> noted_;
};

struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

class Attack {
 public:
  Attack(const std::string& address, uint64_t seed)
      : channel_(rpc::MakeChannel(address)), generic_(channel_), mutator_(seed) {}

  // False when the daemon does not answer.
  bool Prepare(const std::string& valid_job, const std::string& sandbox) {
    valid_job_ = valid_job;
    facts_.job = kTarget;
    facts_.sandbox = sandbox;
    v1::ListNodesResponse nodes;
    v1::DescribeJobRequest describe;
    v1::DescribeJobResponse described;
    describe.set_job(valid_job);
    const auto jobs = v1::JobService::NewStub(channel_);
    if (!Ask([&](auto* c) { return jobs->ListNodes(c, {}, &nodes); }) ||
        !Ask([&](auto* c) { return jobs->Describe(c, describe, &described); })) {
      return false;
    }
    facts_.nodes_fingerprint = nodes.nodes_fingerprint();
    create_.set_nodes_fingerprint(nodes.nodes_fingerprint());
    *create_.mutable_spec() = described.spec();
    create_.mutable_spec()->set_name(kTarget);
    mutator_.SetValid(create_);
    return true;
  }

  void Send(uint64_t requests) {
    const std::vector<const MethodDescriptor*> methods = Methods();
    for (uint64_t i = 0; i < requests; ++i) {
      if (i % kRefreshEvery == 0) Refresh();
      size_t chosen = i % methods.size();
      // Else there would hardly ever be a session to name.
      const bool early = i % kRefreshEvery + kEndsFrom < kRefreshEvery;
      while (early && EndsAll(*methods[chosen])) chosen = (chosen + 1) % methods.size();
      const MethodDescriptor& method = *methods[chosen];
      tally_.Enter();
      Start(method, mutator_.Next(*method.input_type()));
    }
    tally_.WaitForAll();
  }

  bool StillAnswers() {
    const auto status = v1::StatusService::NewStub(channel_);
    v1::GetStatusResponse response;
    return Ask([&](auto* c) { return status->GetStatus(c, {}, &response); });
  }
  nlohmann::json Report() const { return tally_.Report(); }

 private:
  template <typename Method>
  bool Ask(const Method& method) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kCallMs);
    const grpc::Status status = method(&context);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.error_message().c_str());
    return status.ok();
  }

  // Whatever the requests so far have done to it: there is a job again, and a session of it.
  void Refresh() {
    const auto jobs = v1::JobService::NewStub(channel_);
    const auto sessions = v1::SessionService::NewStub(channel_);
    v1::CreateOrJoinResponse created;
    v1::OpenSessionRequest open;
    v1::OpenSessionResponse opened;
    RemoveJobs(*jobs);
    if (!Ask([&](auto* c) { return jobs->CreateOrJoin(c, create_, &created); })) return;
    facts_.epoch = created.epoch();
    open.set_job(kTarget);
    open.set_epoch(created.epoch());
    if (!Ask([&](auto* c) { return sessions->Open(c, open, &opened); })) return;
    facts_.session_id = opened.session_id();
    mutator_.set_facts(facts_);
    SetValidRequests();
  }

  // The target, and what mutated names have made.
  void RemoveJobs(v1::JobService::Stub& jobs) {
    const auto status = v1::StatusService::NewStub(channel_);
    v1::GetStatusResponse response;
    (void)Ask([&](auto* c) { return status->GetStatus(c, {}, &response); });
    for (const v1::JobStatus& job : response.status().jobs()) {
      if (job.name() == valid_job_) continue;
      v1::DeleteJobRequest remove;
      remove.set_job(job.name());
      remove.set_force(true);
      v1::DeleteJobResponse removed;
      (void)Ask([&](auto* c) { return jobs.Delete(c, remove, &removed); });
    }
  }

  // Of a worker that trains: without them no request would come as far as a step.
  void SetValidRequests() {
    v1::FinishLoadRequest loaded;
    loaded.set_session_id(facts_.session_id);
    loaded.set_allow_missing(true);
    v1::BeginStepRequest begin;
    begin.set_session_id(facts_.session_id);
    for (uint32_t i = 0; i < create_.spec().groups(); ++i) begin.add_groups()->set_lr(0.5);
    v1::CommitRequest commit;
    commit.set_session_id(facts_.session_id);
    commit.set_timeout_ms(20);
    v1::LoadRequest load;
    load.set_session_id(facts_.session_id);
    load.set_values(std::string(64, '\x3f'));
    v1::ReadRequest read;
    read.set_job(kTarget);
    read.set_quantity(v1::QUANTITY_MASTER);
    read.set_timeout_ms(20);
    v1::ReportStepRequest report;
    report.set_job(kTarget);
    report.set_epoch(facts_.epoch);
    report.set_nodes_fingerprint(facts_.nodes_fingerprint);
    report.set_timeout_ms(20);
    for (const google::protobuf::Message* request :
         std::initializer_list<const google::protobuf::Message*>{&loaded, &begin, &commit, &load,
                                                                 &read, &report}) {
      mutator_.SetValid(*request);
    }
  }

  void Start(const MethodDescriptor& method, const std::string& bytes) {
    const auto call = std::make_shared<Call>();  // until it has been answered
    rpc::SetTimeout(&call->context, kCallMs);
    const grpc::Slice slice(bytes);
    call->request = grpc::ByteBuffer(&slice, 1);
    const std::string name = method.service()->full_name() + "/" + method.name();
    generic_.UnaryCall(
        &call->context, "/" + name, {}, &call->request, &call->response,
        [this, call, name](const grpc::Status& status) { tally_.Add(name, status); });
  }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub generic_;
  RequestMutator mutator_;
  std::string valid_job_;
  KnownFacts facts_;
  v1::CreateOrJoinRequest create_;
  Tally tally_;
};

int Run(char** arguments) {
  const uint64_t requests = std::strtoull(arguments[4], nullptr, 10);
  Attack attack(arguments[1], std::strtoull(arguments[5], nullptr, 10));
  if (!attack.Prepare(arguments[2], arguments[3])) return 2;
  attack.Send(requests);
  const bool alive = attack.StillAnswers();
  std::printf("%s\n", attack.Report().dump().c_str());
  return alive ? 0 : 1;
}

}  // namespace
}  // namespace luwu

int main(int argc, char** argv) {
  if (argc == 6) return luwu::Run(argv);
  std::fprintf(stderr, "usage: mutate_rpcs ADDRESS VALID_JOB SANDBOX REQUESTS SEED\n");
  return 2;
}
