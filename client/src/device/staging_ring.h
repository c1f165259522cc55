// Pinned host memory between the network and the copy engine of one direction: a few large slots
// that are used in turn, allocated and touched once. With kernels each slot also has as much memory
// on the GPU, where values are converted.
//
// One thread uses a ring (the lane of its direction); Cancel may come from any. A slot is free
// again when the event that Seal recorded has happened; that is asked for and never waited for
// inside the driver, so that a deadline and a cancellation count. The ring must be idle when it
// ends: its owner drains the stream first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/device/device.h"
#include "common/base/clock.h"
#include "common/base/sync.h"

namespace luwu::client {

// Waits for an event by asking at growing intervals.
class EventWaiter {
 public:
  // kDeadline, kCancelled, or what CUDA says.
  Status Await(const Device& device, cuda::Event event, TimePoint deadline) LUWU_EXCLUDES(mutex_);
  void Cancel() LUWU_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ LUWU_GUARDED_BY(mutex_) = false;
};

class StagingRing {
 public:
  struct Slot {
    ByteSpan pinned;
    cuda::Address device = 0;  // 0: none
    OwnedEvent event;
    bool sealed = false;  // its event has been recorded and not been seen to happen
  };

  static StatusOr<std::unique_ptr<StagingRing>> Make(const Device& device, uint32_t slots,
                                                     uint64_t slot_bytes);

  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slots() const { return static_cast<uint32_t>(slots_.size()); }
  // The next slot in turn, once it is free.
  StatusOr<Slot*> Take(TimePoint deadline);
  // What was put onto `stream` is the last that touches the slot for now.
  Status Seal(Slot& slot, cuda::Stream stream);
  // Waits until the sealed slot's work is done.
  Status Await(Slot& slot, TimePoint deadline);
  void Cancel() { waiter_.Cancel(); }

 private:
  explicit StagingRing(const Device& device) : device_(device) {}

  const Device& device_;
  uint64_t slot_bytes_ = 0;
  OwnedPinned pinned_;
  OwnedMemory memory_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  EventWaiter waiter_;
};

}  // namespace luwu::client
