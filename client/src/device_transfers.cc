#include "client/src/device_transfers.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace luwu::client {
namespace {

constexpr uint32_t kSlots = 4;                           // of each direction
constexpr uint64_t kSlotBytesMin = 16ull * 1024 * 1024;  // large copies, and room for many shards

uint64_t BytesOf(const std::vector<Segment>& segments) {
  uint64_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.count * DTypeBytes(segment.dtype);
  return bytes;
}

// The chunks of a push as the parts of a contribution.
class StagedParts final : public PushParts {
 public:
  explicit StagedParts(Stager::Push& push) : push_(push) {}
  StatusOr<bool> Next(std::vector<Segment>* segments, Shards* shards) override {
    ASSIGN_OR_RETURN(const bool more, push_.Next(segments, &chunk_));
    *shards = {chunk_.first_shard, chunk_.end_shard};
    return more;
  }

 private:
  Stager::Push& push_;
  Chunk chunk_;
};

}  // namespace

StatusOr<const Device*> DeviceTransfers::FindDevice(const std::vector<Segment>& segments) {
  ASSIGN_OR_RETURN(const cuda::Driver* const driver, cuda::LoadDriver());
  const Device* device = nullptr;
  for (const Segment& segment : segments) {
    const Place place = Locate(*driver, std::bit_cast<uint64_t>(segment.data));
    if (place.kind == Place::Kind::kHost) {
      return Error(ErrorCode::kInvalidArgument,
                   "the segment at element {} is not in GPU memory; luwu_fetch and luwu_push are "
                   "for host memory",
                   segment.offset);
    }
    if (device == nullptr) {
      ASSIGN_OR_RETURN(device, DeviceOf(*driver, place.ordinal));
    } else if (device->ordinal() != place.ordinal) {
      return Error(ErrorCode::kInvalidArgument,
                   "the segment at element {} is on GPU {}, an earlier one on GPU {}: all memory "
                   "of a call must be on one",
                   segment.offset, place.ordinal, device->ordinal());
    }
  }
  if (device != nullptr) return device;
  return Error(ErrorCode::kInvalidArgument, "no segment has any element");
}

Status DeviceTransfers::Use(const Device& device) {
  if (cancelled_) return Error(ErrorCode::kCancelled, "the session was closed");
  if (stager_ == nullptr) {
    const ModelPlan& plan = fabric_->plan();
    const uint64_t shard_bytes =
        SlotBytesFor(plan.served_shard_bytes_max() / DTypeBytes(plan.spec().served_dtype));
    ASSIGN_OR_RETURN(stager_, Stager::Make(device, {kSlots, std::max(kSlotBytesMin, shard_bytes)}));
    events_ = std::make_shared<EventPool>(&device);
    LogInfo("gpu_staging", "gpu={} name=\"{}\" pinned_bytes={} kernels={}{}", device.ordinal(),
            device.name(), stager_->pinned_bytes(),
            device.has_kernels() ? "yes" : "no: ", device.no_kernels());
  }
  if (&stager_->device() == &device) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "the memory is on GPU {}, but this session works with GPU {}; open a session for "
               "each GPU",
               device.ordinal(), stager_->device().ordinal());
}

StatusOr<DeviceCall> DeviceTransfers::Prepare(std::vector<Segment> segments, cuda::Stream stream) {
  ASSIGN_OR_RETURN(const Device* const device, FindDevice(segments));
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(Use(*device));
  DeviceCall call;
  call.segments = std::move(segments);
  call.stream = stream;
  ASSIGN_OR_RETURN(call.ready, events_->Take());
  RETURN_IF_ERROR(device->Record(call.ready.get(), stream));
  return call;
}

Status DeviceTransfers::Arm(const DeviceCall& call, DeviceFetchOperation* operation) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(EventPool::Loan arrived, events_->Take());
  operation->Arm(&stager_->device(), call.stream, std::move(arrived));
  return OkStatus();
}

Status DeviceTransfers::CheckPush(const DevicePushOptions& options) {
  MutexLock lock(mutex_);
  const Device& device = stager_->device();
  if (device.has_kernels() || (options.scale == 1.0f && !options.check)) return OkStatus();
  return Error(ErrorCode::kUnsupported,
               "scale and check need the GPU kernels, which are not there: {}",
               device.no_kernels());
}

Stager& DeviceTransfers::stager() {
  MutexLock lock(mutex_);
  return *stager_;
}

StagedLayer DeviceTransfers::Describe(uint32_t layer, const DeviceCall& memory,
                                      std::vector<ShardRange>* shards) const {
  shards->clear();
  for (const ShardPlan& shard : fabric_->plan().layers()[layer].shards) {
    shards->push_back(shard.range);
  }
  StagedLayer staged;
  staged.shards = *shards;
  staged.segments = memory.segments;
  staged.ready = memory.ready.get();
  return staged;
}

Status DeviceTransfers::Fetch(const FetchCall& call, const DeviceCall& memory,
                              cuda::Event arrived) {
  StagedLayer layer = Describe(call.layer, memory, &fetch_shards_);
  layer.wire = fabric_->plan().spec().served_dtype;
  layer.deadline = call.deadline;
  const FetchEngine::Loan context = fetch_->TakeContext();
  const auto fill = [&](const std::vector<Segment>& segments) {
    context->segments = segments;
    return fetch_->Fetch(call, *context);
  };
  RETURN_IF_ERROR(stager().Fetch(layer, fill, arrived));
  fetched_bytes_.fetch_add(BytesOf(memory.segments), std::memory_order_relaxed);
  return OkStatus();
}

Status DeviceTransfers::Push(const PushCall& call, const DeviceCall& memory,
                             const DevicePushOptions& options, GradientCheck* check) {
  StagedLayer layer = Describe(call.layer, memory, &push_shards_);
  layer.wire = fabric_->plan().spec().gradient_dtype;
  layer.deadline = call.deadline;
  const PushEngine::Loan context = push_->TakeContext();
  Stager::Push staged(stager(), layer, options.scale, options.check ? check : nullptr);
  StagedParts parts(staged);
  RETURN_IF_ERROR(push_->Push(call, *context, parts));
  pushed_bytes_.fetch_add(BytesOf(memory.segments), std::memory_order_relaxed);
  return OkStatus();
}

DeviceInfo DeviceTransfers::Info() {
  MutexLock lock(mutex_);
  if (stager_ == nullptr) return {};
  const Device& device = stager_->device();
  return {.used = true,
          .ordinal = device.ordinal(),
          .name = device.name(),
          .kernels = device.has_kernels(),
          .no_kernels = device.no_kernels(),
          .pinned_bytes = stager_->pinned_bytes(),
          .fetched_bytes = fetched_bytes_,
          .pushed_bytes = pushed_bytes_};
}

void DeviceTransfers::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  if (stager_ != nullptr) stager_->Cancel();
}

}  // namespace luwu::client
