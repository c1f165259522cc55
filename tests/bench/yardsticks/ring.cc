#include <sched.h>

#include <cstring>

#include "tests/bench/link.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {
namespace {

RingHeader* HeaderOf(const Mapping& ring) { return reinterpret_cast<RingHeader*>(ring.data()); }

std::byte* Slot(const Mapping& ring, uint64_t piece) {
  return ring.data() + kRingDataOffset + piece % kRingSlots * kPieceBytes;
}

}  // namespace

Interval WriteRing(const Mapping& ring, const Buffers& buffers, uint64_t bytes) {
  RingHeader* header = HeaderOf(ring);
  const uint64_t first = header->written.load(std::memory_order_relaxed);
  const uint64_t pieces = bytes / kPieceBytes;
  Interval interval = {MonotonicSeconds(), 0};
  for (uint64_t i = first; i < first + pieces; ++i) {
    while (i - header->read.load(std::memory_order_acquire) >= kRingSlots) sched_yield();
    std::memcpy(Slot(ring, i), buffers.source.data() + i * kPieceBytes % kBufferBytes, kPieceBytes);
    header->written.store(i + 1, std::memory_order_release);
  }
  interval.end = MonotonicSeconds();
  return interval;
}

Interval ReadRing(const Mapping& ring, uint64_t bytes) {
  static std::atomic<uint64_t> sink;
  RingHeader* header = HeaderOf(ring);
  const uint64_t first = header->read.load(std::memory_order_relaxed);
  const uint64_t pieces = bytes / kPieceBytes;
  Interval interval = {MonotonicSeconds(), 0};
  for (uint64_t i = first; i < first + pieces; ++i) {
    while (header->written.load(std::memory_order_acquire) <= i) sched_yield();
    sink += SumBytes({Slot(ring, i), kPieceBytes});
    header->read.store(i + 1, std::memory_order_release);
  }
  interval.end = MonotonicSeconds();
  return interval;
}

}  // namespace luwu::bench
