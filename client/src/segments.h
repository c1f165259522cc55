// Segment arithmetic: a caller's memory is a set of ranges of a layer; the wire moves shards, which
// are other ranges of the same layer. Pure functions over sorted segments; any thread. Errors name
// the layer and the segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/tensor/dtype.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"

namespace luwu::client {

// Caller memory for elements [offset, offset + count) of a layer. Pushes only read through `data`.
struct Segment {
  DType dtype = DType::kUnspecified;
  std::byte* data = nullptr;
  uint64_t offset = 0;
  uint64_t count = 0;

  uint64_t end() const { return offset + count; }
  std::byte* at(uint64_t element) const { return data + (element - offset) * DTypeBytes(dtype); }
};

// Sorts by offset, drops empty segments, and refuses: unsupported dtypes, null or misaligned
// memory, ranges outside the layer, overlaps.
Status PrepareSegments(const LayerSpec& layer, std::vector<Segment>* segments);

// kInvalidArgument naming the first trainable tensor that is not wholly covered.
Status CheckCoverage(const LayerSpec& layer, std::span<const Segment> sorted);

// The segments that intersect `range`, in order.
std::span<const Segment> Intersecting(std::span<const Segment> sorted, ShardRange range);

// The part of a segment inside `range`.
inline Segment Clip(const Segment& segment, ShardRange range) {
  const uint64_t begin = segment.offset > range.first ? segment.offset : range.first;
  const uint64_t range_end = range.first + range.elements;
  const uint64_t end = segment.end() < range_end ? segment.end() : range_end;
  return {segment.dtype, segment.at(begin), begin, end - begin};
}

// Smallest range that holds every element of `range` that a segment covers; empty when none does.
ShardRange Hull(std::span<const Segment> sorted, ShardRange range);

// Writes `range` in dtype `wire` to `target` (range.elements long); uncovered elements become zero.
void GatherRange(std::span<const Segment> sorted, ShardRange range, DType wire, ByteSpan target);

// Spreads `source`, which holds `range` in dtype `wire`, over the segments that intersect it.
void ScatterRange(std::span<const Segment> sorted, ShardRange range, DType wire,
                  ConstByteSpan source);

}  // namespace luwu::client
