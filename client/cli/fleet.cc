#include "client/cli/fleet.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/node_address.h"
#include "common/base/bytes.h"
#include "common/rpc/channel.h"
#include "luwu/v1/jobs.grpc.pb.h"

namespace luwu::cli {
namespace {

// Of calls that last as long as files are large, when the user sets no limit.
constexpr uint64_t kDayMs = 24ull * 3600 * 1000;
constexpr uint64_t kProgressTimeoutMs = 1000;

}  // namespace

bool ProgressLine::Due() {
  const Clock::time_point now = Clock::now();
  if (now < next_) return false;
  next_ = now + std::chrono::milliseconds(terminal_ ? 500 : 5000);
  return true;
}

void ProgressLine::Show(uint64_t done_bytes, uint64_t total_bytes) {
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
  const double share = total_bytes == 0 ? 0 : 100.0 * double(done_bytes) / double(total_bytes);
  fmt::print(stderr, "{}{}: {:.2f} of {:.2f} GB, {:.0f} %, {:.2f} GB/s{}", terminal_ ? "\r" : "",
             what_, double(done_bytes) * 1e-9, double(total_bytes) * 1e-9, share,
             double(done_bytes) * 1e-9 / std::max(seconds, 1e-3), terminal_ ? "  " : "\n");
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::End() {
  if (shown_ && terminal_) fmt::print(stderr, "\n");
}

Fleet::Fleet(const Options& options, StopSignals* stop)
    : short_ms_(options.timeout_ms),
      long_ms_(options.timeout_given ? options.timeout_ms : kDayMs),
      stop_(stop) {}

StatusOr<Fleet> Fleet::Find(const Options& options, StopSignals* stop) {
  Fleet fleet(options, stop);
  const v1::ListNodesRequest request;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const std::string& endpoint : options.endpoints) {
    channels.push_back(rpc::MakeChannel(endpoint, options.credentials));
  }
  auto lists = Gather<v1::ListNodesResponse>(
      {.calls = channels.size(), .timeout_ms = options.timeout_ms, .stop = stop},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return v1::JobService::NewStub(channels[i])->PrepareAsyncListNodes(context, request, queue);
      });
  const auto answer =
      std::find_if(lists.begin(), lists.end(), [](const auto& list) { return list.ok(); });
  if (answer == lists.end()) {
    return CallError(lists.front().status(), {"", options.endpoints.front(), options.timeout_ms});
  }
  const std::string& asked = options.endpoints[static_cast<size_t>(answer - lists.begin())];
  for (int i = 0; i < (*answer)->nodes_size(); ++i) {
    const v1::Node& node = (*answer)->nodes(i);
    if (node.weight() == 0) continue;
    const std::string address = AddressOf(**answer, i, asked);
    fleet.members_.push_back(
        {node.name(), address,
         v1::InterchangeService::NewStub(rpc::MakeChannel(address, options.credentials))});
  }
  return fleet;
}

// A member that is done, or has not begun, does not answer; the line shows what is known.
void Fleet::ShowProgress(uint64_t operation, ProgressLine* line) {
  if (!line->Due()) return;
  v1::GetProgressRequest request;
  request.set_operation(operation);
  const auto answers = Gather<v1::GetProgressResponse>(
      {.calls = members_.size(), .timeout_ms = kProgressTimeoutMs, .stop = stop_},
      [&](size_t i, grpc::ClientContext* context, grpc::CompletionQueue* queue) {
        return members_[i].stub->PrepareAsyncGetProgress(context, request, queue);
      });
  uint64_t done = 0;
  uint64_t total = 0;
  for (const auto& answer : answers) {
    if (!answer.ok()) continue;
    done += answer->done_bytes();
    total += answer->total_bytes();
  }
  if (total > 0) line->Show(done, total);
}

}  // namespace luwu::cli
