// How handlers answer. Reply() is for what can be answered at once, DeferredReply for what is
// answered later, from another thread.
//
// A call without a deadline is served like any other: the waits that a call can cause (commit, peer
// report, read) have limits of their own in the request, and a client that goes away ends them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/status_bridge.h"
#include "server/service/admission.h"

namespace luwu {

// What every service needs to answer in the name of its node.
struct Responder {
  std::string node;
  const Admission* admission = nullptr;
};

// Finishes its call exactly once: with the answer, or when the client cancels or its deadline
// passes, whichever is first. Whoever may answer holds a reference; the first Finish() wins.
class DeferredReply final : public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<DeferredReply> Create(grpc::CallbackServerContext* context,
                                               const Responder& responder) {
    auto reply = std::make_shared<DeferredReply>(context, responder);
    reply->self_ = reply;  // until OnDone
    return reply;
  }
  DeferredReply(grpc::CallbackServerContext* context, const Responder& responder)
      : context_(context), node_(responder.node) {}

  // `fill` writes the response message; it runs only for the winner and only when `status` is OK.
  // False when the call was finished before.
  template <typename Fill>
  bool Finish(const Status& status, Fill&& fill) {
    if (finished_.exchange(true)) return false;
    if (status.ok()) std::forward<Fill>(fill)();
    ServerUnaryReactor::Finish(rpc::ToGrpc(context_, status, node_));
    return true;
  }
  bool Finish(const Status& status) {
    return Finish(status, [] {});
  }
  bool finished() const { return finished_.load(); }

  void OnCancel() override { Finish(Error(ErrorCode::kCancelled, "the caller gave up")); }
  void OnDone() override { const std::shared_ptr<DeferredReply> last = std::move(self_); }

 private:
  grpc::CallbackServerContext* const context_;
  const std::string node_;
  std::atomic<bool> finished_{false};
  std::shared_ptr<DeferredReply> self_;
};

// The earlier of the call's own deadline and `timeout_ms` from now (a day at most).
TimePoint DeadlineOf(const grpc::CallbackServerContext& context, uint64_t timeout_ms);

}  // namespace luwu
