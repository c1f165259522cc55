#include "client/src/node_finder.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/rpc/address.h"

namespace luwu::client {
namespace {

constexpr uint64_t kRetryMs = 100;

StatusOr<NodeList> Ask(const std::string& endpoint, TimePoint deadline,
                       const rpc::Credentials& credentials) {
  NodeRpc rpc(endpoint, fmt::format("daemon {}", endpoint), credentials);
  auto lists = FanOut<NodeList>(
      1, [&](size_t, NodeRpc::Done<NodeList> done) { rpc.ListNodes(deadline, std::move(done)); });
  const Status& status = lists[0].status();
  if (CodeOf(status) == ErrorCode::kUnsupported) {
    return Error(ErrorCode::kUnsupported, "{}: what answers there is not a luwud",
                 MessageOf(status));
  }
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(
      Annotate(ValidateNodes(lists[0]->nodes), fmt::format("node list of daemon {}", endpoint)));
  // Its port may ask for a certificate that this process does not have.
  NodeList list = *std::move(lists[0]);
  if (endpoint.starts_with("unix:") && list.self < list.nodes.size()) {
    list.nodes[list.self].control_address = endpoint;
  }
  return list;
}

// kNodeLost with the reason of each endpoint.
Status NobodyAnswers(const std::vector<Status>& failures, TimePoint::duration waited) {
  std::string text;
  for (const Status& failure : failures) {
    if (!text.empty()) text += "; ";
    text += MessageOf(failure) + rpc::TlsHint(MessageOf(failure));
    if (CodeOf(failure) == ErrorCode::kDeadline) {
      text +=
          " (neither an answer nor a refusal came: a host that is out of reach, or a program "
          "that is not luwud)";
    }
  }
  return Error(ErrorCode::kNodeLost,
               "no daemon answers: {}; tried for {} ms; is that the control address of a running "
               "luwud?",
               text, std::chrono::duration_cast<Milliseconds>(waited).count());
}

}  // namespace

StatusOr<rpc::Credentials> CredentialsFor(const TlsFiles& files) {
  if (!files.empty()) {
    rpc::ObserveFailedHandshakes(
        [](const std::string& why) { LogWarning("tls_handshake_failed", "why=\"{}\"", why); });
  }
  return rpc::MakeCredentials(files);
}

std::string NameOf(const Node& node) {
  return fmt::format("node {} ({})", node.name, node.control_address);
}

void PauseBeforeRetry(TimePoint deadline) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  const TimePoint until = std::min(DeadlineAfter(kRetryMs), deadline);
  while (never.WaitUntil(mutex, until)) {
  }
}

StatusOr<NodeList> FindNodes(const std::vector<std::string>& endpoints, TimePoint patience_end,
                             const rpc::Credentials& credentials) {
  if (endpoints.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no endpoints: name at least one daemon as \"host:port\"");
  }
  for (const std::string& endpoint : endpoints) RETURN_IF_ERROR(rpc::CheckAddress(endpoint));
  const TimePoint begin = std::chrono::steady_clock::now();
  std::vector<Status> failures(endpoints.size());
  while (true) {
    for (size_t i = 0; i < endpoints.size(); ++i) {
      // A host that drops packets must leave time for the endpoints after it.
      const TimePoint now = std::chrono::steady_clock::now();
      const auto share = (patience_end - now) / (endpoints.size() - i);
      StatusOr<NodeList> list = Ask(endpoints[i], now + share, credentials);
      if (list.ok()) return list;
      // An attempt that was cut short says less than one that failed.
      const bool cut_short = CodeOf(list.status()) == ErrorCode::kDeadline;
      if (!cut_short || failures[i].ok()) failures[i] = list.status();
    }
    const auto may_recover = [](const Status& failure) {
      return CodeOf(failure) == ErrorCode::kUnavailable || CodeOf(failure) == ErrorCode::kDeadline;
    };
    if (std::none_of(failures.begin(), failures.end(), may_recover)) return failures.back();
    if (std::chrono::steady_clock::now() >= patience_end) break;
    PauseBeforeRetry(patience_end);
  }
  return NobodyAnswers(failures, std::chrono::steady_clock::now() - begin);
}

}  // namespace luwu::client
