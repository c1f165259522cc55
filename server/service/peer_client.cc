#include "server/service/peer_client.h"

#include <algorithm>
#include <set>

#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/peers.grpc.pb.h"
#include "server/service/point_proto.h"

namespace luwu {
namespace {

constexpr uint64_t kShortMs = 10'000;
// A node that is still at it then answers "try again" to the next attempt.
constexpr uint64_t kRollbackMs = 60'000;

uint64_t ShortMs(TimePoint deadline) {
  return std::clamp<uint64_t>(MillisecondsUntil(deadline), 1, kShortMs);
}

// The calls that are outstanding, so that Shutdown can end them.
class Outstanding {
 public:
  // False after Shutdown.
  bool Add(grpc::ClientContext* context) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ended_) return false;
    contexts_.insert(context);
    return true;
  }
  void Remove(grpc::ClientContext* context) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
  }
  void Shutdown() LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ended_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

 private:
  Mutex mutex_;
  bool ended_ LUWU_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ LUWU_GUARDED_BY(mutex_);
};

// What one call owns until its callback has run.
template <typename Request, typename Response>
struct Call {
  std::shared_ptr<v1::PeerService::Stub> stub;
  grpc::ClientContext context;
  Request request;
  Response response;
  uint64_t timeout_ms = 0;
};

// In words that name the node, also when it is gRPC that gave up.
template <typename CallType>
Status ResultOf(const Node& peer, const CallType& call, const grpc::Status& grpc_status) {
  if (grpc_status.ok()) return OkStatus();
  const Status status = rpc::FromGrpc(grpc_status, call.context);
  const bool answered = !rpc::NodeOfError(call.context).empty();
  if (!answered && CodeOf(status) == ErrorCode::kDeadline) {
    return Error(ErrorCode::kDeadline,
                 "node {} ({}) has not answered within {} ms; its daemon is stopped, overloaded or "
                 "out of reach",
                 peer.name, peer.control_address, call.timeout_ms);
  }
  return Annotate(status, fmt::format("node {} ({})", peer.name, peer.control_address));
}

class GrpcPeerClient final : public PeerClient {
 public:
  GrpcPeerClient(std::vector<Node> nodes, uint32_t self, uint64_t fingerprint,
                 const rpc::Credentials& credentials)
      : nodes_(std::move(nodes)),
        self_(self),
        fingerprint_(fingerprint),
        outstanding_(std::make_shared<Outstanding>()) {
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      stubs_.push_back(node == self
                           ? nullptr
                           : std::shared_ptr<v1::PeerService::Stub>(v1::PeerService::NewStub(
                                 rpc::MakeChannel(nodes_[node].control_address, credentials))));
    }
  }
  ~GrpcPeerClient() override { Shutdown(); }

  void PrepareRollback(uint32_t node, const JobKey& job, uint64_t round, PointsDone done) override {
    auto call =
        Make<v1::PrepareRollbackRequest, v1::PrepareRollbackResponse>(node, job.name, kShortMs);
    call->request.set_round(round);
    call->request.set_lineage(job.lineage);
    Send(node, call, &v1::PeerService::StubInterface::async_interface::PrepareRollback,
         Points(std::move(done), call));
  }
  void RollBack(uint32_t node, const std::string& job, uint64_t round, const persist::Point& target,
                Done done) override {
    auto call = Make<v1::RollbackRequest, v1::RollbackResponse>(node, job, kRollbackMs);
    call->request.set_round(round);
    *call->request.mutable_target() = ToProto(target);
    Send(node, call, &v1::PeerService::StubInterface::async_interface::Rollback, std::move(done));
  }
  void MakePoint(uint32_t node, const PointRequest& point, TimePoint deadline, Done done) override {
    auto call =
        Make<v1::MakePointRequest, v1::MakePointResponse>(node, point.job, ShortMs(deadline));
    call->request.set_epoch(point.epoch);
    call->request.set_step(point.step);
    Send(node, call, &v1::PeerService::StubInterface::async_interface::MakePoint, std::move(done));
  }
  void KeepCheckpoint(uint32_t node, const CheckpointRequest& checkpoint, TimePoint deadline,
                      Done done) override {
    auto call = Make<v1::KeepCheckpointRequest, v1::KeepCheckpointResponse>(node, checkpoint.job,
                                                                            ShortMs(deadline));
    call->request.set_epoch(checkpoint.epoch);
    call->request.set_name(checkpoint.name);
    call->request.set_step(checkpoint.step);
    call->request.set_created_unix_s(checkpoint.created_unix_s);
    Send(node, call, &v1::PeerService::StubInterface::async_interface::KeepCheckpoint,
         std::move(done));
  }
  void DropCheckpoint(uint32_t node, const CheckpointName& checkpoint, TimePoint deadline,
                      Done done) override {
    auto call = Make<v1::DropCheckpointRequest, v1::DropCheckpointResponse>(node, checkpoint.job,
                                                                            ShortMs(deadline));
    call->request.set_name(checkpoint.name);
    Send(node, call, &v1::PeerService::StubInterface::async_interface::DropCheckpoint,
         std::move(done));
  }
  void ListStored(uint32_t node, const std::string& job, TimePoint deadline,
                  PointsDone done) override {
    auto call = Make<v1::ListStoredPointsRequest, v1::ListStoredPointsResponse>(node, job,
                                                                                ShortMs(deadline));
    Send(node, call, &v1::PeerService::StubInterface::async_interface::ListStoredPoints,
         Points(std::move(done), call));
  }
  void VerifyStored(uint32_t node, const CheckpointName& checkpoint, TimePoint deadline,
                    PointsDone done) override {
    auto call = Make<v1::ListStoredPointsRequest, v1::ListStoredPointsResponse>(
        node, checkpoint.job, std::max<uint64_t>(MillisecondsUntil(deadline), 1));
    call->request.set_verify_checkpoint(checkpoint.name);
    Send(node, call, &v1::PeerService::StubInterface::async_interface::ListStoredPoints,
         Points(std::move(done), call));
  }
  void AskRecovery(uint32_t lead, const RecoveryRequest& request, Done done) override {
    auto call = Make<v1::AskRecoveryRequest, v1::AskRecoveryResponse>(lead, request.job, kShortMs);
    call->request.set_epoch(request.epoch);
    call->request.set_node(self_);
    call->request.set_just_started(request.just_started);
    Send(lead, call, &v1::PeerService::StubInterface::async_interface::AskRecovery,
         std::move(done));
  }

  void Shutdown() override { outstanding_->Shutdown(); }

 private:
  template <typename Request, typename Response>
  std::shared_ptr<Call<Request, Response>> Make(uint32_t node, const std::string& job,
                                                uint64_t timeout_ms) const {
    auto call = std::make_shared<Call<Request, Response>>();
    call->stub = stubs_[node];
    call->timeout_ms = timeout_ms;
    rpc::SetTimeout(&call->context, timeout_ms);
    call->request.set_job(job);
    call->request.set_nodes_fingerprint(fingerprint_);
    return call;
  }

  template <typename CallType>
  static Done Points(PointsDone done, const std::shared_ptr<CallType>& call) {
    return [done = std::move(done), call](const Status& status) {
      done(status.ok() ? StatusOr<StoredPoints>(StoredOf(call->response)) : status);
    };
  }

  template <typename Request, typename Response>
  void Send(uint32_t node, const std::shared_ptr<Call<Request, Response>>& call,
            void (v1::PeerService::StubInterface::async_interface::*method)(
                grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>),
            Done done) const {
    if (!outstanding_->Add(&call->context)) {
      done(Error(ErrorCode::kCancelled, "node {} is shutting down", nodes_[self_].name));
      return;
    }
    v1::PeerService::StubInterface::async_interface* const async = call->stub->async();
    (async->*method)(&call->context, &call->request, &call->response,
                     [call, outstanding = outstanding_, peer = nodes_[node],
                      done = std::move(done)](const grpc::Status& status) {
                       outstanding->Remove(&call->context);
                       done(ResultOf(peer, *call, status));
                     });
  }

  const std::vector<Node> nodes_;
  const uint32_t self_;
  const uint64_t fingerprint_;
  std::vector<std::shared_ptr<v1::PeerService::Stub>> stubs_;  // by node; null: this one
  const std::shared_ptr<Outstanding> outstanding_;
};

}  // namespace

std::unique_ptr<PeerClient> MakePeerClient(std::vector<Node> nodes, uint32_t self,
                                           uint64_t nodes_fingerprint,
                                           const rpc::Credentials& credentials) {
  return std::make_unique<GrpcPeerClient>(std::move(nodes), self, nodes_fingerprint, credentials);
}

}  // namespace luwu
