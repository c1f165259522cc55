// Fetches into and pushes from GPU memory for one session: finds the GPU that a call's memory lies
// on, keeps the staging (made at the first such call, bounded, until the session ends), and ties
// its chunks to the engines. One session works with one GPU.
//
// Prepare runs on the caller's thread, Fetch on the fetch lane, Push on the push lane; the rest on
// any. kUnsupported says what the host or the build lacks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/device/event_pool.h"
#include "client/src/device/stager.h"
#include "client/src/fabric.h"
#include "client/src/fetch_engine.h"
#include "client/src/operation.h"
#include "client/src/push_engine.h"
#include "common/base/sync.h"

namespace luwu::client {

// A call's memory and what it has to wait for.
struct DeviceCall {
  std::vector<Segment> segments;  // prepared
  EventPool::Loan ready;          // after what the caller's stream held when the call was made
  cuda::Stream stream = nullptr;
};

struct DevicePushOptions {
  float scale = 1.0f;
  bool check = false;
};

struct DeviceInfo {
  bool used = false;  // else the rest says nothing
  cuda::Ordinal ordinal = 0;
  std::string name;
  bool kernels = false;
  std::string no_kernels;  // why not
  uint64_t pinned_bytes = 0;
  uint64_t fetched_bytes = 0;  // of GPU memory
  uint64_t pushed_bytes = 0;
};

// A fetch whose copies are on their way when it is done: whoever takes its result makes the stream
// wait for them.
class DeviceFetchOperation final : public Operation {
 public:
  void Arm(const Device* device, cuda::Stream stream, EventPool::Loan arrived) {
    device_ = device;
    stream_ = stream;
    arrived_ = std::move(arrived);
  }
  cuda::Event arrived() const { return arrived_.get(); }
  Status Deliver() override { return device_->Wait(stream_, arrived_.get()); }

 private:
  const Device* device_ = nullptr;
  cuda::Stream stream_ = nullptr;
  EventPool::Loan arrived_;
};

class DeviceTransfers {
 public:
  DeviceTransfers(Fabric* fabric, FetchEngine* fetch, PushEngine* push)
      : fabric_(fabric), fetch_(fetch), push_(push) {}

  StatusOr<DeviceCall> Prepare(std::vector<Segment> segments, cuda::Stream stream)
      LUWU_EXCLUDES(mutex_);
  // Before a fetch that has been prepared is queued.
  Status Arm(const DeviceCall& call, DeviceFetchOperation* operation) LUWU_EXCLUDES(mutex_);
  // Before a push that has been prepared is queued.
  Status CheckPush(const DevicePushOptions& options) LUWU_EXCLUDES(mutex_);

  // Once it returns, `arrived` happens when the weights are there.
  Status Fetch(const FetchCall& call, const DeviceCall& memory, cuda::Event arrived)
      LUWU_EXCLUDES(mutex_);
  Status Push(const PushCall& call, const DeviceCall& memory, const DevicePushOptions& options,
              GradientCheck* check) LUWU_EXCLUDES(mutex_);

  DeviceInfo Info() LUWU_EXCLUDES(mutex_);
  // Ends the waits of calls in progress and to come.
  void Cancel() LUWU_EXCLUDES(mutex_);

 private:
  StatusOr<const Device*> FindDevice(const std::vector<Segment>& segments);
  Status Use(const Device& device) LUWU_REQUIRES(mutex_);
  Stager& stager() LUWU_EXCLUDES(mutex_);
  StagedLayer Describe(uint32_t layer, const DeviceCall& memory,
                       std::vector<ShardRange>* shards) const;

  Fabric* const fabric_;
  FetchEngine* const fetch_;
  PushEngine* const push_;
  std::vector<ShardRange> fetch_shards_;  // of the fetch lane
  std::vector<ShardRange> push_shards_;   // of the push lane
  std::atomic<uint64_t> fetched_bytes_{0};
  std::atomic<uint64_t> pushed_bytes_{0};
  Mutex mutex_;
  bool cancelled_ LUWU_GUARDED_BY(mutex_) = false;
  // Set once.
  std::unique_ptr<Stager> stager_ LUWU_GUARDED_BY(mutex_);
  std::shared_ptr<EventPool> events_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::client
