#include <sched.h>

#include <cstring>

#include "server/optim/optimizer.h"
#include "tests/bench/link.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {
namespace {

RingHeader* HeaderOf(const Mapping& ring) { return reinterpret_cast<RingHeader*>(ring.data()); }

std::byte* Slot(const Mapping& ring, uint64_t piece) {
  return ring.data() + kRingDataOffset + piece % kRingSlots * kPieceBytes;
}

// Masters in the first half of the target, the served copy in the second, walked round and round.
void UpdateWith(const std::byte* gradient, DType wire, uint64_t piece, Buffers* buffers) {
  const OptimizerSpec sgd = {.kind = OptimizerKind::kSgd, .sgd_momentum = false};
  const HyperParameters hyper = {.lr = 1e-3};
  const uint64_t count = kPieceBytes / DTypeBytes(wire);
  const uint64_t places = kBufferBytes / 2 / (count * sizeof(float));
  std::byte* master = buffers->target.data() + piece % places * count * sizeof(float);
  std::byte* served = buffers->target.data() + kBufferBytes / 2 + piece % places * kPieceBytes;
  const optim::GradientSource source = {gradient, wire};
  optim::ApplyUpdate(sgd, hyper, 0,
                     {.count = count,
                      .gradients = {&source, 1},
                      .gradient_scale = 1,
                      .in = {{master}},
                      .out = {{master}},
                      .served = served,
                      .served_dtype = wire});
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

Interval ReadRing(const Mapping& ring, RingUse use, DType wire, uint64_t bytes, Buffers* buffers) {
  static std::atomic<uint64_t> sink;
  RingHeader* header = HeaderOf(ring);
  const uint64_t first = header->read.load(std::memory_order_relaxed);
  const uint64_t pieces = bytes / kPieceBytes;
  Interval interval = {MonotonicSeconds(), 0};
  for (uint64_t i = first; i < first + pieces; ++i) {
    while (header->written.load(std::memory_order_acquire) <= i) sched_yield();
    if (use == RingUse::kRead) sink += SumBytes({Slot(ring, i), kPieceBytes});
    if (use == RingUse::kUpdate) UpdateWith(Slot(ring, i), wire, i, buffers);
    header->read.store(i + 1, std::memory_order_release);
  }
  interval.end = MonotonicSeconds();
  return interval;
}

}  // namespace luwu::bench
