#include "client/cli/cluster.h"

#include <algorithm>
#include <utility>

#include "client/cli/gather.h"
#include "client/cli/node_address.h"
#include "common/rpc/cluster_checks.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "luwu/v1/jobs.grpc.pb.h"
#include "luwu/v1/status.grpc.pb.h"

namespace luwu::cli {
namespace {

namespace health = ::grpc::health::v1;

}  // namespace

Cluster::Cluster(std::vector<std::string> endpoints, rpc::Credentials credentials,
                 uint64_t timeout_ms, StopSignals* stop)
    : endpoints_(std::move(endpoints)),
      credentials_(std::move(credentials)),
      timeout_ms_(timeout_ms),
      stop_(stop) {}

Cluster::~Cluster() = default;

std::shared_ptr<grpc::Channel> Cluster::ChannelTo(const std::string& address) {
  auto& channel = channels_[address];
  if (channel == nullptr) channel = rpc::MakeChannel(address, credentials_);
  return channel;
}

std::vector<Cluster::Target> Cluster::FindTargets() {
  const v1::ListNodesRequest request;
  auto lists = Gather<v1::ListNodesResponse>(
      {.calls = endpoints_.size(), .timeout_ms = timeout_ms_, .stop = stop_},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return v1::JobService::NewStub(ChannelTo(endpoints_[i]))
            ->PrepareAsyncListNodes(context, request, queue);
      });
  std::vector<Target> targets;
  const auto add = [&targets](const Target& added) {
    const auto same = [&](const Target& target) { return target.address == added.address; };
    if (std::none_of(targets.begin(), targets.end(), same)) targets.push_back(added);
  };
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].ok()) continue;
    for (int k = 0; k < lists[i]->nodes_size(); ++k) {
      const v1::Node& node = lists[i]->nodes(k);
      add({node.name(), AddressOf(*lists[i], k, endpoints_[i]), node.weight() > 0});
    }
  }
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (!lists[i].ok()) add({"", endpoints_[i]});
  }
  return targets;
}

std::vector<rpc::NodeStatus> Cluster::GetStatus() {
  const std::vector<Target> targets = FindTargets();
  const v1::GetStatusRequest request;
  auto replies = Gather<v1::GetStatusResponse>(
      {.calls = targets.size(), .timeout_ms = timeout_ms_, .stop = stop_},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return v1::StatusService::NewStub(ChannelTo(targets[i].address))
            ->PrepareAsyncGetStatus(context, request, queue);
      });
  std::vector<rpc::NodeStatus> nodes;
  for (size_t i = 0; i < targets.size(); ++i) {
    StatusOr<v1::DaemonStatus> status = v1::DaemonStatus();
    if (replies[i].ok()) {
      status = std::move(*replies[i]->mutable_status());
    } else {
      status = replies[i].status();
    }
    nodes.push_back(
        {targets[i].name, targets[i].address, std::move(status), targets[i].serves_shards});
  }
  rpc::AddClusterChecks(&nodes);
  return nodes;
}

std::vector<HealthReport> Cluster::GetHealth() {
  std::vector<HealthReport> reports;
  for (rpc::NodeStatus& node : GetStatus()) reports.push_back({std::move(node), "UNREACHABLE"});
  const health::HealthCheckRequest request;
  auto replies = Gather<health::HealthCheckResponse>(
      {.calls = reports.size(), .timeout_ms = timeout_ms_, .stop = stop_},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return health::Health::NewStub(ChannelTo(reports[i].node.address))
            ->PrepareAsyncCheck(context, request, queue);
      });
  for (size_t i = 0; i < reports.size(); ++i) {
    if (replies[i].ok()) {
      reports[i].health = health::HealthCheckResponse::ServingStatus_Name(replies[i]->status());
    } else if (reports[i].node.status.ok()) {
      reports[i].node.status = replies[i].status();
    }
  }
  return reports;
}

void Cluster::DeleteOn(const std::vector<Target>& targets, const Deletion& deletion,
                       std::vector<DeleteReport>* reports) {
  v1::DeleteJobRequest request;
  request.set_job(deletion.job);
  request.set_force(deletion.force);
  auto replies = Gather<v1::DeleteJobResponse>(
      {.calls = targets.size(), .timeout_ms = timeout_ms_, .stop = stop_},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return v1::JobService::NewStub(ChannelTo(targets[i].address))
            ->PrepareAsyncDelete(context, request, queue);
      });
  for (size_t i = 0; i < targets.size(); ++i) {
    reports->push_back({targets[i].name, targets[i].address, replies[i].status()});
  }
}

std::vector<DeleteReport> Cluster::DeleteJob(const std::string& job, bool force) {
  std::vector<Target> others = FindTargets();
  std::vector<Target> lead;
  const auto found = std::find_if(others.begin(), others.end(),
                                  [](const Target& target) { return target.serves_shards; });
  if (found != others.end()) {
    lead.push_back(*found);
    others.erase(found);
  }
  std::vector<DeleteReport> reports;
  DeleteOn(lead, {job, force}, &reports);
  const bool refused = !lead.empty() && !reports.front().status.ok() &&
                       CodeOf(reports.front().status) != ErrorCode::kNotFound;
  if (!refused || force) {
    DeleteOn(others, {job, force}, &reports);
    return reports;
  }
  for (const Target& target : others) {
    reports.push_back({target.name, target.address,
                       Error(ErrorCode::kCancelled,
                             "the job stays, because the lead node {} keeps it (--force deletes it "
                             "all the same)",
                             lead.front().name)});
  }
  return reports;
}

}  // namespace luwu::cli
