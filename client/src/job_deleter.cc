#include "client/src/job_deleter.h"

#include <utility>

#include "client/src/node_finder.h"
#include "client/src/session_rpc.h"
#include "common/base/log.h"

namespace luwu::client {
namespace {

// What came of the calls so far.
class Deletion {
 public:
  Deletion(const DeleteOptions& options, rpc::Credentials credentials, TimePoint deadline)
      : options_(options), credentials_(std::move(credentials)), deadline_(deadline) {}

  uint32_t deleted() const { return deleted_; }
  // kNotFound is not one.
  const Status& failed() const { return failed_; }

  void Run(const std::vector<Node>& nodes) {
    std::vector<std::unique_ptr<NodeRpc>> rpcs;
    for (const Node& node : nodes) {
      rpcs.push_back(std::make_unique<NodeRpc>(node.control_address, NameOf(node), credentials_));
    }
    const auto answers = FanOut<Nothing>(nodes.size(), [&](size_t i, NodeRpc::Done<Nothing> done) {
      rpcs[i]->DeleteJob({.job = options_.job, .force = options_.force}, deadline_,
                         std::move(done));
    });
    for (const auto& answer : answers) {
      if (answer.ok()) {
        ++deleted_;
      } else if (CodeOf(answer.status()) != ErrorCode::kNotFound) {
        Add(answer.status());
      }
    }
  }

 private:
  // The first error's code with the text of all.
  void Add(const Status& status) {
    if (failed_.ok()) {
      failed_ = status;
      return;
    }
    failed_ =
        MakeError(CodeOf(failed_), fmt::format("{}; {}", MessageOf(failed_), MessageOf(status)));
  }

  const DeleteOptions& options_;
  const rpc::Credentials credentials_;
  const TimePoint deadline_;
  uint32_t deleted_ = 0;
  Status failed_;
};

}  // namespace

Status DeleteJob(const DeleteOptions& options) {
  const TimePoint deadline = DeadlineAfter(options.timeout_ms);
  ASSIGN_OR_RETURN(const rpc::Credentials credentials, CredentialsFor(options.tls));
  ASSIGN_OR_RETURN(const NodeList list, FindNodes(options.endpoints, deadline, credentials));
  Deletion deletion(options, credentials, deadline);
  std::vector<Node> lead;
  std::vector<Node> others;
  for (const Node& node : list.nodes) {
    if (node.weight > 0) (lead.empty() ? lead : others).push_back(node);
  }
  deletion.Run(lead);
  if (deletion.failed().ok() || options.force) deletion.Run(others);
  RETURN_IF_ERROR(deletion.failed());
  if (deletion.deleted() == 0) {
    return Error(ErrorCode::kNotFound, "no node of the cluster has a job '{}'", options.job);
  }
  LogInfo("job_deleted", "job={} nodes={}", options.job, deletion.deleted());
  return OkStatus();
}

}  // namespace luwu::client
