// One call of a node to a job's lead until it has an answer: a lead that cannot be reached is tried
// again, with growing pauses, until `give_up_ms`; one that says "not yet" (its own deadline has
// passed) is asked again at once. Holds no thread while it waits. Step reports and reports of
// durable points share it.
//
// Used by peer_reporter.cc only. Kept alive by the RPC or the alarm that is outstanding.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/service/peer_reporter.h"

namespace luwu {

class LeadCall : public std::enable_shared_from_this<LeadCall> {
 public:
  // Sends one attempt; the function is called with its result. What it owns lives as long as the
  // call.
  using Attempt = std::function<void(grpc::ClientContext*, std::function<void(grpc::Status)>)>;
  // Runs once: OK when an attempt was answered so.
  using Done = std::function<void(const Status&)>;

  LeadCall(const PeerReporterOptions& options, Attempt attempt, Done done)
      : options_(options), attempt_(std::move(attempt)), done_(std::move(done)) {}

  void Send() LUWU_EXCLUDES(mutex_);
  // Ends the call unless it has ended.
  void Cancel(const Status& why) LUWU_EXCLUDES(mutex_);
  bool ended() const LUWU_EXCLUDES(mutex_);

 private:
  void End(const Status& result) LUWU_EXCLUDES(mutex_);
  void OnAnswer(const grpc::Status& grpc_status) LUWU_EXCLUDES(mutex_);
  void Pause() LUWU_EXCLUDES(mutex_);
  Status Refusal(const Status& status) const;

  const PeerReporterOptions options_;
  const Attempt attempt_;
  // One attempt or pause at a time touches these.
  std::optional<TimePoint> silent_since_;
  uint64_t pause_ms_ = 0;

  mutable Mutex mutex_;
  Done done_ LUWU_GUARDED_BY(mutex_);             // null: ended
  std::unique_ptr<grpc::ClientContext> context_;  // replaced under the lock, by Send only
  std::unique_ptr<grpc::Alarm> alarm_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
