#include "client/cli/doctor_cluster.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "client/cli/gather.h"
#include "client/cli/node_address.h"
#include "common/doctor/reach.h"
#include "luwu/v1/doctor.grpc.pb.h"
#include "luwu/v1/jobs.grpc.pb.h"

namespace luwu::cli {
namespace {

struct Channels {
  rpc::Credentials credentials;
  std::map<std::string, std::shared_ptr<grpc::Channel>> by_address = {};
};

const std::shared_ptr<grpc::Channel>& ChannelTo(const std::string& address, Channels* channels) {
  auto& channel = channels->by_address[address];
  if (channel == nullptr) channel = rpc::MakeChannel(address, channels->credentials);
  return channel;
}

int64_t NowUs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

doctor::Severity SeverityOf(v1::Severity severity) {
  switch (severity) {
    case v1::SEVERITY_ERR:
      return doctor::Severity::kErr;
    case v1::SEVERITY_WARN:
      return doctor::Severity::kWarn;
    default:
      return doctor::Severity::kOk;
  }
}

std::vector<NodeFacts> FindNodes(const Options& options, StopSignals* stop, Channels* channels) {
  const v1::ListNodesRequest request;
  const auto lists = Gather<v1::ListNodesResponse>(
      {.calls = options.endpoints.size(), .timeout_ms = options.timeout_ms, .stop = stop},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return v1::JobService::NewStub(ChannelTo(options.endpoints[i], channels))
            ->PrepareAsyncListNodes(context, request, queue);
      });
  std::vector<NodeFacts> nodes;
  const auto add = [&nodes](NodeFacts added) {
    const auto same = [&](const NodeFacts& node) { return node.address == added.address; };
    if (std::none_of(nodes.begin(), nodes.end(), same)) nodes.push_back(std::move(added));
  };
  const Status unasked = Error(ErrorCode::kUnavailable, "not asked");
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].ok()) continue;
    for (int k = 0; k < lists[i]->nodes_size(); ++k) {
      const v1::Node& node = lists[i]->nodes(k);
      add({.name = node.name(),
           .address = AddressOf(*lists[i], k, options.endpoints[i]),
           .diagnosis = unasked,
           .data_address = node.weight() > 0 ? node.data_address() : ""});
    }
  }
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].ok()) {
      add({.name = "", .address = options.endpoints[i], .diagnosis = lists[i].status()});
    }
  }
  return nodes;
}

Diagnosis DiagnosisOf(const v1::DiagnoseResponse& response) {
  Diagnosis diagnosis = {response.node(), response.version(), response.nodes_fingerprint(), {}};
  for (const v1::Check& check : response.checks()) {
    diagnosis.rows.push_back({response.node(), check.name(), SeverityOf(check.severity()),
                              check.summary(), check.hint()});
  }
  return diagnosis;
}

// A daemon waits for its peers no longer than half of what it is waited for.
void Diagnose(const Options& options, StopSignals* stop, Channels* channels,
              std::vector<NodeFacts>* nodes) {
  v1::DiagnoseRequest request;
  request.set_peer_timeout_ms(static_cast<uint32_t>(std::max<uint64_t>(options.timeout_ms / 2, 1)));
  const auto replies = Gather<v1::DiagnoseResponse>(
      {.calls = nodes->size(), .timeout_ms = options.timeout_ms, .stop = stop},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return v1::DoctorService::NewStub(ChannelTo((*nodes)[i].address, channels))
            ->PrepareAsyncDiagnose(context, request, queue);
      });
  for (size_t i = 0; i < nodes->size(); ++i) {
    StatusOr<Diagnosis>& diagnosis = (*nodes)[i].diagnosis;
    if (replies[i].ok()) {
      diagnosis = DiagnosisOf(*replies[i]);
    } else {
      diagnosis = replies[i].status();
    }
  }
}

// One at a time and on a connection that is there, so that the times before and after are close.
void ReadClocks(const Options& options, StopSignals* stop, Channels* channels,
                std::vector<NodeFacts>* nodes) {
  const v1::ReadClockRequest request;
  for (NodeFacts& node : *nodes) {
    if (!node.diagnosis.ok() || stop->Requested()) continue;
    ClockReading clock;
    clock.before_us = NowUs();
    const auto replies = Gather<v1::ReadClockResponse>(
        {.calls = 1, .timeout_ms = options.timeout_ms, .stop = stop},
        [&](size_t, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
          return v1::DoctorService::NewStub(ChannelTo(node.address, channels))
              ->PrepareAsyncReadClock(context, request, queue);
        });
    clock.after_us = NowUs();
    if (!replies.front().ok()) continue;
    clock.node_us = replies.front()->unix_us();
    node.clock = clock;
  }
}

void TryDataPorts(uint64_t timeout_ms, std::vector<NodeFacts>* nodes) {
  std::vector<std::string> addresses;
  for (const NodeFacts& node : *nodes) {
    if (!node.data_address.empty()) addresses.push_back(node.data_address);
  }
  const std::vector<Status> reached = doctor::Reach(addresses, DeadlineAfter(timeout_ms));
  size_t next = 0;
  for (NodeFacts& node : *nodes) {
    if (!node.data_address.empty()) node.data_reach = reached[next++];
  }
}

}  // namespace

std::vector<NodeFacts> AskCluster(const Options& options, StopSignals* stop) {
  Channels channels = {options.credentials};
  std::vector<NodeFacts> nodes = FindNodes(options, stop, &channels);
  Diagnose(options, stop, &channels, &nodes);
  ReadClocks(options, stop, &channels, &nodes);
  TryDataPorts(options.timeout_ms, &nodes);
  return nodes;
}

}  // namespace luwu::cli
