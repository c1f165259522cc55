#include <cstring>

#include "tests/bench/link.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {

StatusOr<Buffers> MakeBuffers() {
  Buffers buffers;
  ASSIGN_OR_RETURN(buffers.source, AllocateHuge(kBufferBytes));
  ASSIGN_OR_RETURN(buffers.target, AllocateHuge(kBufferBytes));
  // Not all zero, so that no layer below can treat the pages as one.
  for (uint64_t i = 0; i < kBufferBytes; ++i) {
    buffers.source.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  }
  return buffers;
}

Interval CopyBytes(Buffers* buffers, uint64_t bytes) {
  Interval interval = {MonotonicSeconds(), 0};
  for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
    const uint64_t offset = done % kBufferBytes;
    std::memcpy(buffers->target.data() + offset, buffers->source.data() + offset, kPieceBytes);
  }
  interval.end = MonotonicSeconds();
  return interval;
}

uint64_t SumBytes(ConstByteSpan bytes) {
  constexpr uint64_t kLanes = 8;  // independent sums, for the vector units
  uint64_t sums[kLanes] = {};
  uint64_t words[kLanes];
  for (uint64_t i = 0; i + sizeof words <= bytes.size(); i += sizeof words) {
    std::memcpy(words, bytes.data() + i, sizeof words);
    for (uint64_t lane = 0; lane < kLanes; ++lane) sums[lane] += words[lane];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace luwu::bench
