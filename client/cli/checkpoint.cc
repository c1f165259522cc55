#include "client/cli/checkpoint.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "client/cli/call_error.h"
#include "client/cli/gather.h"
#include "client/cli/node_address.h"
#include "client/cli/table.h"
#include "common/rpc/status_json.h"
#include "luwu/v1/checkpoints.grpc.pb.h"
#include "luwu/v1/jobs.grpc.pb.h"

namespace luwu::cli {
namespace {

constexpr uint64_t kPatienceMs = 600'000;  // for what waits for disks, unless a time was given
constexpr uint64_t kAnswerMarginMs = 1'000;

using Stub = v1::CheckpointService::Stub;

nlohmann::json ToJson(const v1::CheckpointInfo& info) {
  return {{"name", info.name()}, {"step", info.step()}, {"created_unix_s", info.created_unix_s()}};
}

class Lead {
 public:
  Lead(const Options& options, StopSignals* stop) : options_(options), stop_(stop) {}

  // From the first endpoint that answers.
  Status Find() {
    Status last = Error(ErrorCode::kUnavailable, "no endpoint");
    for (const std::string& endpoint : options_.endpoints) {
      auto lists = Gather<v1::ListNodesResponse>(
          {.calls = 1, .timeout_ms = options_.timeout_ms, .stop = stop_},
          [&](size_t, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
            return v1::JobService::NewStub(rpc::MakeChannel(endpoint, options_.credentials))
                ->PrepareAsyncListNodes(context, v1::ListNodesRequest(), queue);
          });
      last = CallError(lists[0].status(), {"", endpoint, options_.timeout_ms});
      if (!lists[0].ok()) continue;
      for (int i = 0; i < lists[0]->nodes_size(); ++i) {
        const v1::Node& node = lists[0]->nodes(i);
        if (node.weight() == 0) continue;
        name_ = node.name();
        address_ = AddressOf(*lists[0], i, endpoint);
        stub_ = v1::CheckpointService::NewStub(rpc::MakeChannel(address_, options_.credentials));
        return OkStatus();
      }
    }
    return last;
  }

  uint64_t patience_ms() const {
    return options_.timeout_given ? options_.timeout_ms : kPatienceMs;
  }

  template <typename Response, typename Request>
  StatusOr<Response> Call(const Request& request,
                          std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (
                              Stub::*method)(grpc::ClientContext*, const Request&,
                                             grpc::CompletionQueue*)) {
    auto answers =
        Gather<Response>({.calls = 1, .timeout_ms = patience_ms() + kAnswerMarginMs, .stop = stop_},
                         [&](size_t, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
                           return (stub_.get()->*method)(context, request, queue);
                         });
    if (!answers[0].ok()) return CallError(answers[0].status(), {name_, address_, patience_ms()});
    return std::move(answers[0]);
  }

 private:
  const Options& options_;
  StopSignals* const stop_;
  std::string name_;
  std::string address_;
  std::unique_ptr<Stub> stub_;
};

template <typename Request>
Request Named(const Options& options) {
  Request request;
  request.set_job(options.job);
  request.set_name(options.checkpoint);
  return request;
}

StatusOr<std::string> Create(const Options& options, Lead* lead) {
  auto request = Named<v1::CreateCheckpointRequest>(options);
  request.set_timeout_ms(lead->patience_ms());
  ASSIGN_OR_RETURN(const v1::CreateCheckpointResponse response,
                   lead->Call<v1::CreateCheckpointResponse>(request, &Stub::PrepareAsyncCreate));
  const v1::CheckpointInfo& made = response.checkpoint();
  if (options.json) return rpc::JsonText(ToJson(made), 2) + "\n";
  return fmt::format("checkpoint {} of job {} at step {}\n", made.name(), options.job, made.step());
}

StatusOr<std::string> List(const Options& options, Lead* lead) {
  v1::ListCheckpointsRequest request;
  request.set_job(options.job);
  request.set_timeout_ms(lead->patience_ms());
  ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse response,
                   lead->Call<v1::ListCheckpointsResponse>(request, &Stub::PrepareAsyncList));
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const v1::CheckpointInfo& info : response.checkpoints()) list.push_back(ToJson(info));
    return rpc::JsonText({{"job", options.job}, {"checkpoints", list}}, 2) + "\n";
  }
  if (response.checkpoints().empty()) {
    return fmt::format("job {} has no checkpoints\n", options.job);
  }
  Table table({"CHECKPOINT", ">STEP", "CREATED"});
  for (const v1::CheckpointInfo& info : response.checkpoints()) {
    table.AddRow({info.name(), std::to_string(info.step()), UtcTime(info.created_unix_s())});
  }
  return table.Render();
}

StatusOr<std::string> Delete(const Options& options, Lead* lead) {
  auto request = Named<v1::DeleteCheckpointRequest>(options);
  request.set_timeout_ms(lead->patience_ms());
  RETURN_IF_ERROR(
      lead->Call<v1::DeleteCheckpointResponse>(request, &Stub::PrepareAsyncDelete).status());
  if (options.json) {
    return rpc::JsonText({{"job", options.job}, {"deleted", options.checkpoint}}, 2) + "\n";
  }
  return fmt::format("deleted checkpoint {} of job {}\n", options.checkpoint, options.job);
}

StatusOr<std::string> Restore(const Options& options, Lead* lead) {
  auto request = Named<v1::RestoreCheckpointRequest>(options);
  request.set_timeout_ms(lead->patience_ms());
  ASSIGN_OR_RETURN(const v1::RestoreCheckpointResponse response,
                   lead->Call<v1::RestoreCheckpointResponse>(request, &Stub::PrepareAsyncRestore));
  if (options.json) {
    return rpc::JsonText(
               {{"job", options.job}, {"name", options.checkpoint}, {"step", response.step()}}, 2) +
           "\n";
  }
  return fmt::format("job {} is back at checkpoint {}, step {}; its workers open new sessions\n",
                     options.job, options.checkpoint, response.step());
}

StatusOr<std::string> Perform(const Options& options, StopSignals* stop) {
  Lead lead(options, stop);
  RETURN_IF_ERROR(lead.Find());
  switch (options.checkpoint_verb) {
    case CheckpointVerb::kCreate:
      return Create(options, &lead);
    case CheckpointVerb::kList:
      return List(options, &lead);
    case CheckpointVerb::kDelete:
      return Delete(options, &lead);
    case CheckpointVerb::kRestore:
      break;
  }
  return Restore(options, &lead);
}

}  // namespace

int Checkpoint(const Options& options, StopSignals* stop) {
  const StatusOr<std::string> text = Perform(options, stop);
  if (!text.ok()) {
    fmt::print(stderr, "luwuctl: {}\n", Printable(MessageOf(text.status())));
    return kExitFailure;
  }
  std::fwrite(text->data(), 1, text->size(), stdout);
  return kExitOk;
}

}  // namespace luwu::cli
