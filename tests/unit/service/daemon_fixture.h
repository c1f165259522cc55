// A whole single-node daemon in this process, on loopback ports of its own, and the plain gRPC
// stubs to talk to it: what the service tests share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include "common/base/bytes.h"
#include "common/rpc/channel.h"
#include "common/rpc/job_spec_proto.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/jobs.grpc.pb.h"
#include "luwu/v1/peers.grpc.pb.h"
#include "luwu/v1/sessions.grpc.pb.h"
#include "luwu/v1/status.grpc.pb.h"
#include "luwu/v1/steps.grpc.pb.h"
#include "luwu/v1/tensors.grpc.pb.h"
#include "server/daemon.h"
#include "tests/unit/service/samples.h"

namespace luwu {

inline constexpr uint64_t kCallTimeoutMs = 30'000;

class DaemonTest : public testing::Test {
 protected:
  virtual DaemonConfig MakeConfig() {
    DaemonConfig config;
    config.nodes.push_back({.name = "local",
                            .weight = 1,
                            .control_address = "127.0.0.1:0",
                            .data_address = "127.0.0.1:0",
                            .shm_path = ""});
    config.memory_budget_bytes = 64 * kMiB;
    config.optimizer_threads = 1;
    config.heartbeat_ms = 10'000;
    config.lease_ms = 60'000;
    config.log_level = LogLevel::kOff;
    return config;
  }

  void SetUp() override { StartDaemon(); }

  void StartDaemon() {
    StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(MakeConfig());
    ASSERT_TRUE(daemon.ok()) << ToString(daemon.status());
    daemon_ = *std::move(daemon);
    channel_ = rpc::MakeChannel(daemon_->config().node().control_address);
    jobs_ = v1::JobService::NewStub(channel_);
    sessions_ = v1::SessionService::NewStub(channel_);
    steps_ = v1::StepService::NewStub(channel_);
    tensors_ = v1::TensorService::NewStub(channel_);
    status_ = v1::StatusService::NewStub(channel_);
    peers_ = v1::PeerService::NewStub(channel_);
  }

  // One unary call: Call(jobs_, &v1::JobService::Stub::Describe, request).
  template <typename Stub, typename Request, typename Response>
  static StatusOr<Response> Call(const std::unique_ptr<Stub>& stub,
                                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                                 const Request& request) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kCallTimeoutMs);
    Response response;
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status, context);
    return response;
  }

  v1::CreateOrJoinRequest CreateRequest(const JobSpec& spec, uint64_t epoch = 0) const {
    v1::CreateOrJoinRequest request;
    *request.mutable_spec() = rpc::ToProto(spec);
    request.set_epoch(epoch);
    request.set_nodes_fingerprint(FingerprintOf(daemon_->config().nodes));
    return request;
  }
  StatusOr<v1::CreateOrJoinResponse> Create(const v1::CreateOrJoinRequest& request) {
    return Call(jobs_, &v1::JobService::Stub::CreateOrJoin, request);
  }
  StatusOr<v1::CreateOrJoinResponse> Create(const JobSpec& spec, uint64_t epoch = 0) {
    return Create(CreateRequest(spec, epoch));
  }
  // The epoch of a new job.
  uint64_t MustCreate(const JobSpec& spec) {
    const auto created = Create(spec);
    EXPECT_TRUE(created.ok()) << ToString(created.status());
    return created.ok() ? created->epoch() : 0;
  }

  static v1::OpenSessionRequest OpenRequest(const std::string& job, uint64_t epoch, uint32_t rank,
                                            uint64_t restart_count = 0) {
    v1::OpenSessionRequest request;
    request.set_job(job);
    request.set_epoch(epoch);
    request.set_rank(rank);
    request.set_restart_count(restart_count);
    request.set_host("test-host");
    request.set_pid(4000 + rank);
    return request;
  }
  StatusOr<v1::OpenSessionResponse> Open(const v1::OpenSessionRequest& request) {
    return Call(sessions_, &v1::SessionService::Stub::Open, request);
  }
  uint64_t MustOpen(const std::string& job, uint64_t epoch, uint32_t rank) {
    const auto opened = Open(OpenRequest(job, epoch, rank));
    EXPECT_TRUE(opened.ok()) << ToString(opened.status());
    return opened.ok() ? opened->session_id() : 0;
  }
  Status Heartbeat(uint64_t session) {
    v1::HeartbeatRequest request;
    request.set_session_id(session);
    return Call(sessions_, &v1::SessionService::Stub::Heartbeat, request).status();
  }
  Status CloseSession(uint64_t session) {
    v1::CloseSessionRequest request;
    request.set_session_id(session);
    return Call(sessions_, &v1::SessionService::Stub::Close, request).status();
  }
  Status Delete(const std::string& job, bool force, uint64_t epoch = 0) {
    v1::DeleteJobRequest request;
    request.set_job(job);
    request.set_force(force);
    request.set_epoch(epoch);
    return Call(jobs_, &v1::JobService::Stub::Delete, request).status();
  }

  static v1::LoadRequest Piece(uint64_t session, uint32_t layer, uint32_t shard, uint64_t offset,
                               const std::vector<float>& values) {
    v1::LoadRequest request;
    request.set_session_id(session);
    request.set_layer(layer);
    request.set_shard(shard);
    request.set_offset(offset);
    request.set_values(values.data(), values.size() * sizeof(float));
    return request;
  }
  StatusOr<uint64_t> Load(const std::vector<v1::LoadRequest>& pieces) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kCallTimeoutMs);
    v1::LoadResponse response;
    const auto writer = tensors_->Load(&context, &response);
    for (const v1::LoadRequest& piece : pieces) {
      if (!writer->Write(piece)) break;
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (!status.ok()) return rpc::FromGrpc(status, context);
    return response.elements();
  }
  Status FinishLoad(uint64_t session, bool allow_missing) {
    v1::FinishLoadRequest request;
    request.set_session_id(session);
    request.set_allow_missing(allow_missing);
    return Call(tensors_, &v1::TensorService::Stub::FinishLoad, request).status();
  }
  static v1::ReadRequest ReadLayer(const std::string& job, uint32_t layer,
                                   v1::Quantity quantity = v1::QUANTITY_MASTER) {
    v1::ReadRequest request;
    request.set_job(job);
    request.set_layer(layer);
    request.set_quantity(quantity);
    request.set_timeout_ms(10'000);
    return request;
  }
  StatusOr<std::vector<v1::ReadResponse>> Read(const v1::ReadRequest& request) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kCallTimeoutMs);
    const auto reader = tensors_->Read(&context, request);
    std::vector<v1::ReadResponse> pieces;
    v1::ReadResponse piece;
    while (reader->Read(&piece)) pieces.push_back(piece);
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return rpc::FromGrpc(status, context);
    return pieces;
  }

  Status Begin(uint64_t session, uint64_t step,
               const std::vector<v1::HyperParameters>& groups = {AdamWGroup(), AdamWGroup()}) {
    v1::BeginStepRequest request;
    request.set_session_id(session);
    request.set_step(step);
    for (const v1::HyperParameters& group : groups) *request.add_groups() = group;
    return Call(steps_, &v1::StepService::Stub::Begin, request).status();
  }
  StatusOr<v1::CommitResponse> Commit(uint64_t session, uint64_t step, uint64_t timeout_ms) {
    v1::CommitRequest request;
    request.set_session_id(session);
    request.set_step(step);
    request.set_timeout_ms(timeout_ms);
    return Call(steps_, &v1::StepService::Stub::Commit, request);
  }
  v1::DaemonStatus GetStatus() {
    const auto got = Call(status_, &v1::StatusService::Stub::GetStatus, v1::GetStatusRequest());
    EXPECT_TRUE(got.ok()) << ToString(got.status());
    return got.ok() ? got->status() : v1::DaemonStatus();
  }

  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::StepService::Stub> steps_;
  std::unique_ptr<v1::TensorService::Stub> tensors_;
  std::unique_ptr<v1::StatusService::Stub> status_;
  std::unique_ptr<v1::PeerService::Stub> peers_;
};

}  // namespace luwu
