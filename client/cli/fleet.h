// All daemons of one cluster, asked as one: every node with a weight has a part of every job, so a
// call fails as a whole when it fails on one node. Progress of long calls goes to stderr.
//
// One thread.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "client/cli/call_error.h"
#include "client/cli/gather.h"
#include "client/cli/options.h"
#include "client/cli/stop_signals.h"
#include "common/base/status.h"
#include "luwu/v1/interchange.grpc.pb.h"

namespace luwu::cli {

// How far the nodes are, all together: a line on stderr now and then, rewritten on a terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what) : what_(std::move(what)) {}
  void Show(uint64_t done_bytes, uint64_t total_bytes);
  void End();
  // Whether it is time to ask again.
  bool Due();

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point next_ = begun_ + std::chrono::milliseconds(500);
  bool shown_ = false;
};

class Fleet {
 public:
  struct Member {
    std::string name;
    std::string address;
    std::unique_ptr<v1::InterchangeService::Stub> stub;
  };
  // From the first endpoint that answers: the nodes with a weight.
  static StatusOr<Fleet> Find(const Options& options, StopSignals* stop);

  const std::vector<Member>& members() const { return members_; }
  const Member& first() const { return members_.front(); }

  // The same call to every member; the first error, with the member's name.
  template <typename Response, typename Prepare>
  StatusOr<std::vector<Response>> CallAll(uint64_t timeout_ms, Prepare prepare) {
    return Call<Response>({.calls = members_.size(), .timeout_ms = timeout_ms, .stop = stop_},
                          prepare);
  }
  // `operation`: the number that the members know the call by.
  template <typename Response, typename Prepare>
  StatusOr<std::vector<Response>> CallAllLong(const std::string& what, uint64_t operation,
                                              Prepare prepare) {
    ProgressLine line(what);
    GatherOptions gather = {.calls = members_.size(), .timeout_ms = long_ms_, .stop = stop_};
    gather.all_or_nothing = true;
    gather.idle = [&] { ShowProgress(operation, &line); };
    auto responses = Call<Response>(gather, prepare);
    line.End();
    return responses;
  }
  template <typename Response, typename Prepare>
  StatusOr<Response> CallFirst(Prepare prepare) {
    auto responses = Call<Response>({.calls = 1, .timeout_ms = long_ms_, .stop = stop_}, prepare);
    RETURN_IF_ERROR(responses.status());
    return std::move(responses->front());
  }
  // From here on no signal stops a call: for cleaning up.
  void IgnoreSignals() { stop_ = &never_; }
  uint64_t short_ms() const { return short_ms_; }

 private:
  Fleet(const Options& options, StopSignals* stop);
  template <typename Response, typename Prepare>
  StatusOr<std::vector<Response>> Call(const GatherOptions& options, Prepare prepare) {
    auto results = Gather<Response>(options, [&](size_t i, auto* context, auto* queue) {
      return prepare(members_[i].stub.get(), context, queue);
    });
    std::vector<Response> responses;
    std::optional<Status> error;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].ok()) {
        responses.push_back(std::move(*results[i]));
      } else if (!error || CodeOf(*error) == ErrorCode::kCancelled) {
        error = CallError(results[i].status(),
                          {members_[i].name, members_[i].address, options.timeout_ms});
      }
    }
    if (error) return *error;
    return responses;
  }
  void ShowProgress(uint64_t operation, ProgressLine* line);

  std::vector<Member> members_;
  uint64_t short_ms_ = 0;
  uint64_t long_ms_ = 0;
  StopSignals* stop_;
  StopSignals never_;
};

}  // namespace luwu::cli
