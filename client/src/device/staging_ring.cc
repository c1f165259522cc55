#include "client/src/device/staging_ring.h"

#include <algorithm>
#include <utility>

namespace luwu::client {
namespace {

// A slot's copy takes some hundred microseconds.
constexpr std::chrono::microseconds kPauseMin{20};
constexpr std::chrono::microseconds kPauseMax{500};

}  // namespace

Status EventWaiter::Await(const Device& device, cuda::Event event, TimePoint deadline) {
  auto pause = kPauseMin;
  while (true) {
    ASSIGN_OR_RETURN(const bool done, device.IsDone(event));
    if (done) return OkStatus();
    MutexLock lock(mutex_);
    if (cancelled_) return Error(ErrorCode::kCancelled, "the session was closed");
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= deadline) {
      return Error(ErrorCode::kDeadline,
                   "the GPU has not come to the copies of this call in time: its stream is busy "
                   "with what was put onto it before");
    }
    changed_.WaitUntil(mutex_, std::min(deadline, now + pause));
    pause = std::min(2 * pause, kPauseMax);
  }
}

void EventWaiter::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  changed_.NotifyAll();
}

StatusOr<std::unique_ptr<StagingRing>> StagingRing::Make(const Device& device, uint32_t slots,
                                                         uint64_t slot_bytes) {
  std::unique_ptr<StagingRing> ring(new StagingRing(device));
  ring->slot_bytes_ = slot_bytes;
  ASSIGN_OR_RETURN(ring->pinned_, device.AllocatePinned(slots * slot_bytes));
  if (device.has_kernels()) {
    ASSIGN_OR_RETURN(ring->memory_, device.Allocate(slots * slot_bytes));
  }
  for (uint32_t i = 0; i < slots; ++i) {
    Slot slot;
    slot.pinned = {static_cast<std::byte*>(ring->pinned_.get()) + i * slot_bytes, slot_bytes};
    if (device.has_kernels()) slot.device = ring->memory_.get() + i * slot_bytes;
    ASSIGN_OR_RETURN(slot.event, device.MakeEvent());
    ring->slots_.push_back(std::move(slot));
  }
  return ring;
}

StatusOr<StagingRing::Slot*> StagingRing::Take(TimePoint deadline) {
  Slot& slot = slots_[next_];
  RETURN_IF_ERROR(Await(slot, deadline));
  next_ = (next_ + 1) % slots_.size();
  return &slot;
}

Status StagingRing::Seal(Slot& slot, cuda::Stream stream) {
  RETURN_IF_ERROR(device_.Record(slot.event.get(), stream));
  slot.sealed = true;
  return OkStatus();
}

Status StagingRing::Await(Slot& slot, TimePoint deadline) {
  if (!slot.sealed) return OkStatus();
  RETURN_IF_ERROR(waiter_.Await(device_, slot.event.get(), deadline));
  slot.sealed = false;
  return OkStatus();
}

}  // namespace luwu::client
