// One worker's membership in one job on all nodes: owns the control connections, the data plane,
// the engines and their threads ("luwu-fetch", "luwu-push", "luwu-keep", "luwu-beat", and the
// transport's own), and puts them down in order. What a luwu_session handle names; the C ABI calls
// it from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/device_transfers.h"
#include "client/src/fabric.h"
#include "client/src/fetch_engine.h"
#include "client/src/heartbeats.h"
#include "client/src/keeper.h"
#include "client/src/lane.h"
#include "client/src/operation.h"
#include "client/src/push_engine.h"
#include "client/src/rollback_inquiry.h"
#include "client/src/session_rpc.h"
#include "client/src/step_driver.h"
#include "client/src/tensor_io.h"
#include "common/transport/connect.h"

namespace luwu::client {

// What SessionOpener has put together.
struct SessionParts {
  std::shared_ptr<transport::Dialler> dialler;
  std::unique_ptr<Fabric> fabric;
  std::vector<std::unique_ptr<NodeRpc>> rpcs;  // of all nodes in the list
  std::unique_ptr<Heartbeats> heartbeats;      // of the nodes that take part, running
  uint64_t lineage = 0;                        // of the job: its first epoch
  uint32_t lead = 0;                           // of the job, by index
  bool created = false;
  bool loaded = false;
};

struct SessionInfo {
  uint32_t nodes = 0;
  uint64_t current_step = 0;
  uint64_t fetched_bytes = 0;
  uint64_t pushed_bytes = 0;
  uint64_t retries = 0;
  bool created = false;
  bool loaded = false;
  uint32_t shm_nodes = 0;
  uint32_t operations = 0;
  std::optional<uint64_t> rolled_back_step;
};

class Session;

// A push in place between begin and end: holds the mapped memory it gave out.
class InPlaceOperation final : public Operation {
 public:
  InPlaceOperation(std::shared_ptr<Session> session, std::unique_ptr<SlotRun> run,
                   uint32_t timeout_ms)
      : session_(std::move(session)), run_(std::move(run)), timeout_ms_(timeout_ms) {}

  Session& session() const { return *session_; }
  SlotRun& run() const { return *run_; }
  uint32_t timeout_ms() const { return timeout_ms_; }  // of the sending, too
  // True for the one caller who may end it.
  bool TryEnd() { return !ended_.exchange(true); }
  bool ended() const { return ended_; }

 private:
  const std::shared_ptr<Session> session_;
  const std::unique_ptr<SlotRun> run_;  // destroyed before the session
  const uint32_t timeout_ms_;
  std::atomic<bool> ended_{false};
};

class Session final : public std::enable_shared_from_this<Session> {
 public:
  explicit Session(SessionParts parts);
  ~Session();

  const JobSpec& spec() const { return fabric_->plan().spec(); }
  FetchEngine& fetch() { return fetch_; }
  PushEngine& push() { return push_; }
  StepDriver& step() { return step_; }
  TensorIo& tensors() { return tensors_; }

  // Allocates what the first calls would: memory is touched before the first step.
  Status Warm();

  // kInvalidArgument when there is no such layer.
  Status CheckLayer(uint32_t layer) const;
  // What the caller of a failed call is told: that the job is rolled back when that is behind it,
  // which may mean waiting until it is known; else `why`.
  Status Explain(const Status& why) { return inquiry_.Explain(why); }
  // Every call asks first: closed, fenced, job failed.
  Status Health();

  // Queue the call; `operation` finishes with its result. Refused: nothing was started.
  Status StartFetch(const std::shared_ptr<Operation>& operation, const FetchCall& call,
                    std::vector<Segment> segments);
  Status StartPush(const std::shared_ptr<Operation>& operation, PushCall call,
                   std::vector<Segment> segments);
  // The same for GPU memory (session_device.cc).
  Status StartDeviceFetch(const std::shared_ptr<DeviceFetchOperation>& operation,
                          const FetchCall& call, std::vector<Segment> segments,
                          cuda::Stream stream);
  struct DevicePush {
    cuda::Stream stream = nullptr;
    DevicePushOptions options;
    std::function<void(const GradientCheck&)> report = {};  // before the operation is done
  };
  Status StartDevicePush(const std::shared_ptr<Operation>& operation, PushCall call,
                         std::vector<Segment> segments, const DevicePush& how);
  DeviceInfo GpuInfo() { return device_.Info(); }
  struct InPlaceCall {
    uint32_t layer = 0;
    bool close = false;
    uint64_t offset = 0;
    uint32_t pieces_max = 0;
    uint32_t timeout_ms = 0;
  };
  StatusOr<std::shared_ptr<InPlaceOperation>> BeginInPlace(const InPlaceCall& call);
  // Gives up what was reserved: no handle could be given out for it.
  void AbandonInPlace(InPlaceOperation& operation);
  // The result is the operation's.
  void EndInPlace(const std::shared_ptr<InPlaceOperation>& operation);

  Status FinishLoad(bool allow_missing, TimePoint deadline);
  Status AwaitLoaded(TimePoint deadline);
  std::string StatusJson(TimePoint deadline);
  SessionInfo Info();

  // Ends everything: calls in progress return kCancelled. With `farewell` the daemons are told
  // (at most one second); without, they notice the closed links. Idempotent.
  void Close(bool farewell) LUWU_EXCLUDES(close_mutex_);

 private:
  void FinishOperation(Operation& operation, const Status& status);
  // Queue `work`; `operation` finishes with its result, or with kCancelled when the session closes
  // first. Refused: nothing was started, and a push's place in its layer is given back.
  using Work = std::function<Status()>;
  Status SubmitFetch(const std::shared_ptr<Operation>& operation, Work work);
  Status SubmitPush(const std::shared_ptr<Operation>& operation, const PushCall& call, Work work);

  // In the order of construction; destroyed in the reverse one.
  const std::shared_ptr<transport::Dialler> dialler_;
  const std::unique_ptr<Fabric> fabric_;
  FetchEngine fetch_;
  PushEngine push_;
  DeviceTransfers device_;
  Keeper keeper_;
  std::vector<std::unique_ptr<NodeRpc>> rpcs_;  // their callbacks use all of the above
  const std::unique_ptr<Heartbeats> heartbeats_;
  RollbackInquiry inquiry_;
  StepDriver step_;
  TensorIo tensors_;
  const bool created_;
  std::atomic<bool> loaded_;
  Mutex close_mutex_;
  bool closed_ LUWU_GUARDED_BY(close_mutex_) = false;
  Lane fetch_lane_;
  Lane push_lane_;
};

}  // namespace luwu::client
