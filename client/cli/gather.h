// The same unary RPC to several daemons at once: one deadline for all, ended early by a signal.
// Runs on the calling thread with one completion queue; no other thread is made.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include "client/cli/stop_signals.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"

namespace luwu::cli {

struct GatherOptions {
  size_t calls = 0;
  uint64_t timeout_ms = 0;
  StopSignals* stop = nullptr;
  std::function<void()> idle = {};  // called every 50 ms or so while calls are waited for
  bool all_or_nothing = false;      // the first error cancels the other calls
};

// `start(i, context, queue)` prepares call i and returns its reader (not yet started). The result
// has one entry for each call, in order; entries are kCancelled after a stop signal.
template <typename Reply, typename Start>
std::vector<StatusOr<Reply>> Gather(const GatherOptions& options, Start start) {
  struct Call {
    grpc::ClientContext context;
    Reply reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader;
  };
  grpc::CompletionQueue queue;
  std::vector<Call> calls(options.calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    Call& call = calls[i];
    rpc::SetTimeout(&call.context, options.timeout_ms);
    call.reader = start(i, &call.context, &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
  }
  const auto cancel_all = [&calls] {
    for (Call& call : calls) call.context.TryCancel();
  };
  for (size_t left = calls.size(); left > 0;) {
    void* tag = nullptr;
    bool ok = false;
    const auto wake = std::chrono::system_clock::now() + std::chrono::milliseconds(50);
    if (queue.AsyncNext(&tag, &ok, wake) == grpc::CompletionQueue::GOT_EVENT) {
      --left;
      if (options.all_or_nothing && !static_cast<Call*>(tag)->status.ok()) cancel_all();
    } else if (options.stop->Requested()) {
      cancel_all();
    } else if (options.idle) {
      options.idle();
    }
  }
  std::vector<StatusOr<Reply>> results;
  for (Call& call : calls) {
    const Status status = rpc::FromGrpc(call.status, call.context);
    if (status.ok()) {
      results.emplace_back(std::move(call.reply));
    } else {
      results.emplace_back(status);
    }
  }
  return results;
}

}  // namespace luwu::cli
