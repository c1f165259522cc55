#include "server/service/peer_reach.h"

#include <memory>
#include <string>

#include "common/base/sync.h"
#include "common/doctor/reach.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/jobs.grpc.pb.h"

namespace luwu {
namespace {

// A call in progress. Its callback holds it, so that it may outlive the wait.
struct Call {
  std::unique_ptr<v1::JobService::Stub> stub;
  grpc::ClientContext context;
  v1::ListNodesRequest request;
  v1::ListNodesResponse response;
  Mutex mutex;
  CondVar changed;
  bool ended LUWU_GUARDED_BY(mutex) = false;
  grpc::Status status LUWU_GUARDED_BY(mutex);
};

std::shared_ptr<Call> Begin(const std::string& address, TimePoint deadline,
                            const rpc::Credentials& credentials) {
  auto call = std::make_shared<Call>();
  call->stub = v1::JobService::NewStub(rpc::MakeChannel(address, credentials));
  rpc::SetDeadline(&call->context, deadline);
  call->stub->async()->ListNodes(&call->context, &call->request, &call->response,
                                 [call](const grpc::Status& status) {
                                   MutexLock lock(call->mutex);
                                   call->status = status;
                                   call->ended = true;
                                   call->changed.NotifyAll();
                                 });
  return call;
}

// gRPC's own words are about its parts.
Status InPlainWords(const Status& status) {
  const std::string message = MessageOf(status);
  if (CodeOf(status) == ErrorCode::kDeadline) {
    return Error(ErrorCode::kDeadline, "no answer in time: stopped, overloaded or out of reach");
  }
  if (!message.starts_with("failed to connect to all addresses")) return status;
  const size_t colon = message.rfind(": ");
  return Error(ErrorCode::kUnavailable, "cannot connect{}{}",
               colon == std::string::npos ? "" : message.substr(colon), rpc::TlsHint(message));
}

// gRPC ends the call at its deadline, whatever the peer does.
StatusOr<std::string> AnswerOf(Call* call) {
  MutexLock lock(call->mutex);
  while (!call->ended) call->changed.Wait(call->mutex);
  if (!call->status.ok()) return InPlainWords(rpc::FromGrpc(call->status, call->context));
  const v1::ListNodesResponse& list = call->response;
  if (list.self() >= static_cast<uint32_t>(list.nodes_size())) {
    return Error(ErrorCode::kInternal, "it says to be node {} of {}", list.self(),
                 list.nodes_size());
  }
  return list.nodes(static_cast<int>(list.self())).name();
}

}  // namespace

std::vector<doctor::PeerFacts> ReachPeers(const std::vector<Node>& nodes, uint32_t self,
                                          uint64_t timeout_ms,
                                          const rpc::Credentials& credentials) {
  const TimePoint deadline = DeadlineAfter(timeout_ms);
  std::vector<doctor::PeerFacts> peers;
  std::vector<std::shared_ptr<Call>> calls;
  std::vector<std::string> addresses;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (i == self) continue;
    const Node& node = nodes[i];
    const bool serves = node.weight > 0;
    peers.push_back({.name = node.name,
                     .control_address = node.control_address,
                     .answered = Error(ErrorCode::kUnavailable, "not asked"),
                     .data_address = serves ? node.data_address : ""});
    calls.push_back(Begin(node.control_address, deadline, credentials));
    if (!peers.back().data_address.empty()) addresses.push_back(node.data_address);
  }
  const std::vector<Status> reached = doctor::Reach(addresses, deadline);
  size_t next = 0;
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i].answered = AnswerOf(calls[i].get());
    if (!peers[i].data_address.empty()) peers[i].data = reached[next++];
  }
  return peers;
}

}  // namespace luwu
