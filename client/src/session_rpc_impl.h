// Inside of session_rpc*.cc: stubs, and the bookkeeping of calls in flight so that they can be
// cancelled and waited for.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "client/src/session_rpc.h"
#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "luwu/v1/jobs.grpc.pb.h"
#include "luwu/v1/sessions.grpc.pb.h"
#include "luwu/v1/status.grpc.pb.h"
#include "luwu/v1/steps.grpc.pb.h"
#include "luwu/v1/tensors.grpc.pb.h"

namespace luwu::client {

class NodeRpc::Impl {
 public:
  Impl(const std::string& address, const std::string& name, const rpc::Credentials& credentials)
      : name_(name),
        address_(address),
        channel_(rpc::MakeChannel(address, credentials)),
        jobs(v1::JobService::NewStub(channel_)),
        sessions(v1::SessionService::NewStub(channel_)),
        steps(v1::StepService::NewStub(channel_)),
        tensors(v1::TensorService::NewStub(channel_)),
        status(v1::StatusService::NewStub(channel_)) {}
  ~Impl() {
    Shutdown();
    MutexLock lock(mutex_);
    while (!active_.empty()) idle_.Wait(mutex_);
  }

  struct Terms {
    TimePoint deadline;
    bool even_after_shutdown = false;  // for the farewell
  };
  // One unary call. `start(context, request, response, on_done)` posts it; `convert(response)`
  // gives the StatusOr<T> for a success.
  template <typename T, typename Response, typename Request, typename Start, typename Convert>
  void Unary(const Terms& terms, Request request, const Start& start, Convert convert,
             Done<T> done) {
    struct Call {
      grpc::ClientContext context;
      Request request;
      Response response;
    };
    auto call = std::make_shared<Call>();
    call->request = std::move(request);
    rpc::SetDeadline(&call->context, terms.deadline);
    if (!Enter(&call->context, terms.even_after_shutdown)) {
      done(Cancelled());
      return;
    }
    start(&call->context, &call->request, &call->response,
          [this, call, convert = std::move(convert),
           done = std::move(done)](const grpc::Status& status) {
            if (status.ok()) {
              StatusOr<T> result = convert(call->response);
              done(result.ok() ? std::move(result) : StatusOr<T>(Annotate(result.status(), name_)));
            } else {
              done(Failure(status, call->context));
            }
            Leave(&call->context);
          });
  }

  Status Failure(const grpc::Status& status, const grpc::ClientContext& context) const {
    return Annotate(rpc::FromGrpc(status, context), name_);
  }
  Status Cancelled() const {
    return Error(ErrorCode::kCancelled, "{}: the session is being closed", name_);
  }

  // False after Shutdown.
  bool Enter(grpc::ClientContext* context, bool even_after_shutdown = false) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (shut_down_ && !even_after_shutdown) return false;
    active_.insert(context);
    return true;
  }
  void Leave(grpc::ClientContext* context) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    active_.erase(context);
    if (active_.empty()) idle_.NotifyAll();
  }
  void Shutdown() LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    shut_down_ = true;
    for (grpc::ClientContext* context : active_) context->TryCancel();
  }

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

 private:
  const std::string name_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  CondVar idle_;
  bool shut_down_ LUWU_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> active_ LUWU_GUARDED_BY(mutex_);

 public:
  const std::unique_ptr<v1::JobService::Stub> jobs;
  const std::unique_ptr<v1::SessionService::Stub> sessions;
  const std::unique_ptr<v1::StepService::Stub> steps;
  const std::unique_ptr<v1::TensorService::Stub> tensors;
  const std::unique_ptr<v1::StatusService::Stub> status;
};

}  // namespace luwu::client
