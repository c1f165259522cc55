#include "client/src/session_rpc.h"

#include <cstring>

#include "client/src/session_rpc_impl.h"
#include "common/rpc/job_spec_proto.h"
#include "common/tensor/placement.h"
#include "common/wire/window.h"

namespace luwu::client {
namespace {

// After the daemon's own deadline, for its answer to arrive.
constexpr uint64_t kAnswerGraceMs = 500;

StatusOr<Nothing> Ignore(const google::protobuf::Message&) { return Nothing{}; }

StatusOr<OpenReply> ToOpenReply(const v1::OpenSessionResponse& response) {
  OpenReply reply;
  if (response.secret().size() != reply.secret.size()) {
    return Error(ErrorCode::kInternal, "its session secret has {} bytes, not {}",
                 response.secret().size(), reply.secret.size());
  }
  std::memcpy(reply.secret.data(), response.secret().data(), reply.secret.size());
  reply.session_id = response.session_id();
  reply.heartbeat_ms = response.heartbeat_ms();
  reply.lease_ms = response.lease_ms();
  reply.current_step = response.current_step();
  reply.window_slots = response.window_slots();
  if (reply.window_slots >= kWindowSlotsMax) {
    return Error(ErrorCode::kInternal, "its window has {} slots, of {} at most", reply.window_slots,
                 kWindowSlotsMax);
  }
  return reply;
}

StatusOr<BeginReply> ToBeginReply(const v1::BeginStepResponse& response) {
  return BeginReply{.loss_scale = response.loss_scale()};
}

StatusOr<CommitReply> ToCommitReply(const v1::CommitResponse& response) {
  CommitReply reply;
  reply.culprit = response.culprit();
  reply.grad_norm = response.grad_norm();
  reply.clip_factor = response.clip_factor();
  reply.loss_scale = response.loss_scale();
  reply.durability = static_cast<Durability>(response.durability());
  if (DurabilityName(reply.durability).empty()) {
    return Error(ErrorCode::kInternal, "it answered commit with unknown durability {}",
                 static_cast<int>(response.durability()));
  }
  switch (response.outcome()) {
    case v1::OUTCOME_APPLIED:
      reply.outcome = StepOutcome::kApplied;
      return reply;
    case v1::OUTCOME_SKIPPED:
      reply.outcome = StepOutcome::kSkipped;
      return reply;
    case v1::OUTCOME_FAILED:
      reply.outcome = StepOutcome::kFailed;
      return reply;
    default:
      return Error(ErrorCode::kInternal, "it answered commit with unknown outcome {}",
                   static_cast<int>(response.outcome()));
  }
}

StatusOr<JobState> ToJobState(const v1::DescribeJobResponse& response) {
  if (response.phase() < v1::JOB_PHASE_LIVE || response.phase() > v1::JOB_PHASE_LOST) {
    return Error(ErrorCode::kInternal, "it says that the job is in unknown phase {}",
                 static_cast<int>(response.phase()));
  }
  return JobState{.epoch = response.epoch(),
                  .lineage = response.lineage(),
                  .first_step = response.first_step(),
                  .phase = static_cast<JobPhase>(response.phase()),
                  .detail = response.detail()};
}

using Regions = std::vector<transport::RegionDescriptor>;

StatusOr<Regions> ToRegions(const v1::ExchangeRegionsResponse& response) {
  Regions regions;
  for (const v1::RegionDescriptor& region : response.regions()) {
    regions.push_back(
        {region.id(), region.bytes(),
         region.remote_write() ? transport::Access::kRemoteWrite : transport::Access::kRemoteRead});
  }
  return regions;
}

StatusOr<NodeList> ToNodeList(const v1::ListNodesResponse& response) {
  NodeList list;
  for (const v1::Node& node : response.nodes()) list.nodes.push_back(rpc::FromProto(node));
  list.self = response.self();
  list.fingerprint = response.nodes_fingerprint();
  list.boot_id = response.boot_id();
  if (FingerprintOf(list.nodes) != list.fingerprint) {
    return Error(ErrorCode::kInvalidArgument,
                 "the daemon places shards by other rules than this library (layout revision {}); "
                 "use daemons and clients of one version",
                 kLayoutRevision);
  }
  return list;
}

}  // namespace

NodeRpc::NodeRpc(const std::string& address, const std::string& name,
                 const rpc::Credentials& credentials)
    : impl_(std::make_unique<Impl>(address, name, credentials)) {}
NodeRpc::~NodeRpc() = default;

void NodeRpc::Shutdown() { impl_->Shutdown(); }

// Posts one method of a stub; a macro because the generated names are overloaded.
#define LUWU_START(stub, method)                                                  \
  [this](auto* context, auto* request, auto* response, auto on_done) {            \
    impl_->stub->async()->method(context, request, response, std::move(on_done)); \
  }

void NodeRpc::ListNodes(TimePoint deadline, Done<NodeList> done) {
  impl_->Unary<NodeList, v1::ListNodesResponse>({.deadline = deadline}, v1::ListNodesRequest(),
                                                LUWU_START(jobs, ListNodes), ToNodeList,
                                                std::move(done));
}

void NodeRpc::CreateOrJoin(const JobSpec& spec, uint64_t epoch, uint64_t nodes_fingerprint,
                           TimePoint deadline, Done<JoinReply> done) {
  v1::CreateOrJoinRequest request;
  *request.mutable_spec() = rpc::ToProto(spec);
  request.set_epoch(epoch);
  request.set_nodes_fingerprint(nodes_fingerprint);
  impl_->Unary<JoinReply, v1::CreateOrJoinResponse>(
      {.deadline = deadline}, std::move(request), LUWU_START(jobs, CreateOrJoin),
      [](const v1::CreateOrJoinResponse& response) {
        return StatusOr<JoinReply>(JoinReply{.epoch = response.epoch(),
                                             .created = response.created(),
                                             .loaded = response.loaded(),
                                             .current_step = response.current_step(),
                                             .lineage = response.lineage(),
                                             .failure = response.failure()});
      },
      std::move(done));
}

void NodeRpc::DescribeJob(const std::string& job, TimePoint deadline, Done<JobState> done) {
  v1::DescribeJobRequest request;
  request.set_job(job);
  request.set_without_spec(true);
  impl_->Unary<JobState, v1::DescribeJobResponse>({.deadline = deadline}, std::move(request),
                                                  LUWU_START(jobs, Describe), ToJobState,
                                                  std::move(done));
}

void NodeRpc::DeleteJob(const Deletion& deletion, TimePoint deadline, Done<Nothing> done) {
  v1::DeleteJobRequest request;
  request.set_job(deletion.job);
  request.set_epoch(deletion.epoch);
  request.set_force(deletion.force);
  impl_->Unary<Nothing, v1::DeleteJobResponse>({.deadline = deadline}, std::move(request),
                                               LUWU_START(jobs, Delete), Ignore, std::move(done));
}

void NodeRpc::OpenSession(const OpenRequest& open, TimePoint deadline, Done<OpenReply> done) {
  v1::OpenSessionRequest request;
  request.set_job(open.job);
  request.set_epoch(open.epoch);
  request.set_rank(open.rank);
  request.set_restart_count(open.restart_count);
  request.set_host(open.host);
  request.set_pid(open.pid);
  impl_->Unary<OpenReply, v1::OpenSessionResponse>({.deadline = deadline}, std::move(request),
                                                   LUWU_START(sessions, Open), ToOpenReply,
                                                   std::move(done));
}

void NodeRpc::ExchangeRegions(const Regions& regions, const DataLink& link, TimePoint deadline,
                              Done<Regions> done) {
  v1::ExchangeRegionsRequest request;
  request.set_session_id(session_id_);
  request.set_connections(link.connections);
  request.set_verbs(link.verbs);
  for (const transport::RegionDescriptor& region : regions) {
    v1::RegionDescriptor* out = request.add_regions();
    out->set_id(region.id);
    out->set_bytes(region.bytes);
    out->set_remote_write(region.access == transport::Access::kRemoteWrite);
  }
  impl_->Unary<Regions, v1::ExchangeRegionsResponse>({.deadline = deadline}, std::move(request),
                                                     LUWU_START(sessions, ExchangeRegions),
                                                     ToRegions, std::move(done));
}

void NodeRpc::Heartbeat(TimePoint deadline, Done<uint64_t> done) {
  v1::HeartbeatRequest request;
  request.set_session_id(session_id_);
  impl_->Unary<uint64_t, v1::HeartbeatResponse>(
      {.deadline = deadline}, std::move(request), LUWU_START(sessions, Heartbeat),
      [](const v1::HeartbeatResponse& response) {
        return StatusOr<uint64_t>(response.current_step());
      },
      std::move(done));
}

void NodeRpc::CloseSession(TimePoint deadline, Done<Nothing> done) {
  v1::CloseSessionRequest request;
  request.set_session_id(session_id_);
  impl_->Unary<Nothing, v1::CloseSessionResponse>(
      {.deadline = deadline, .even_after_shutdown = true}, std::move(request),
      LUWU_START(sessions, Close), Ignore, std::move(done));
}

void NodeRpc::BeginStep(uint64_t step, const std::vector<HyperParameters>& groups,
                        TimePoint deadline, Done<BeginReply> done) {
  v1::BeginStepRequest request;
  request.set_session_id(session_id_);
  request.set_step(step);
  for (const HyperParameters& group : groups) *request.add_groups() = rpc::ToProto(group);
  impl_->Unary<BeginReply, v1::BeginStepResponse>({.deadline = deadline}, std::move(request),
                                                  LUWU_START(steps, Begin), ToBeginReply,
                                                  std::move(done));
}

void NodeRpc::Commit(uint64_t step, TimePoint deadline, Done<CommitReply> done) {
  v1::CommitRequest request;
  request.set_session_id(session_id_);
  request.set_step(step);
  request.set_timeout_ms(MillisecondsUntil(deadline));
  impl_->Unary<CommitReply, v1::CommitResponse>(
      {.deadline = deadline + Milliseconds(kAnswerGraceMs)}, std::move(request),
      LUWU_START(steps, Commit), ToCommitReply, std::move(done));
}

void NodeRpc::FinishLoad(bool allow_missing, TimePoint deadline, Done<Nothing> done) {
  v1::FinishLoadRequest request;
  request.set_session_id(session_id_);
  request.set_allow_missing(allow_missing);
  impl_->Unary<Nothing, v1::FinishLoadResponse>({.deadline = deadline}, std::move(request),
                                                LUWU_START(tensors, FinishLoad), Ignore,
                                                std::move(done));
}
#undef LUWU_START

}  // namespace luwu::client
