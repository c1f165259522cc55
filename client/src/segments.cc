#include "client/src/segments.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace luwu::client {
namespace {

Status CheckSegment(const LayerSpec& layer, const Segment& segment) {
  if (!IsSupported(segment.dtype)) {
    return Error(ErrorCode::kUnsupported,
                 "segment at element {} of layer '{}': dtype {} is not supported; use float32, "
                 "bfloat16 or float16",
                 segment.offset, layer.name, static_cast<int>(segment.dtype));
  }
  if (!RangeFits(segment.offset, segment.count, layer.elements)) {
    return Error(ErrorCode::kInvalidArgument,
                 "segment [{}, +{}) lies outside layer '{}' of {} elements", segment.offset,
                 segment.count, layer.name, layer.elements);
  }
  if (segment.count == 0) return OkStatus();
  if (segment.data == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "segment at element {} of layer '{}' has no data",
                 segment.offset, layer.name);
  }
  if (std::bit_cast<uintptr_t>(segment.data) % DTypeBytes(segment.dtype) != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "segment at element {} of layer '{}': data is not aligned to {}", segment.offset,
                 layer.name, DTypeName(segment.dtype));
  }
  return OkStatus();
}

}  // namespace

Status PrepareSegments(const LayerSpec& layer, std::vector<Segment>* segments) {
  for (const Segment& segment : *segments) RETURN_IF_ERROR(CheckSegment(layer, segment));
  std::erase_if(*segments, [](const Segment& segment) { return segment.count == 0; });
  const auto by_offset = [](const Segment& a, const Segment& b) { return a.offset < b.offset; };
  if (!std::is_sorted(segments->begin(), segments->end(), by_offset)) {
    std::sort(segments->begin(), segments->end(), by_offset);
  }
  for (size_t i = 1; i < segments->size(); ++i) {
    const Segment& before = (*segments)[i - 1];
    const Segment& here = (*segments)[i];
    if (before.end() > here.offset) {
      return Error(ErrorCode::kInvalidArgument,
                   "segments [{}, +{}) and [{}, +{}) of layer '{}' overlap", before.offset,
                   before.count, here.offset, here.count, layer.name);
    }
  }
  return OkStatus();
}

Status CheckCoverage(const LayerSpec& layer, std::span<const Segment> sorted) {
  size_t next = 0;
  for (const TensorSpec& tensor : layer.tensors) {
    uint64_t elements = 1;  // the product was checked with the job
    for (const uint64_t size : tensor.shape) elements *= size;
    if (!tensor.trainable) continue;
    while (next < sorted.size() && sorted[next].end() <= tensor.offset) ++next;
    uint64_t covered = tensor.offset;
    const uint64_t end = tensor.offset + elements;
    for (size_t i = next; i < sorted.size() && sorted[i].offset <= covered && covered < end; ++i) {
      covered = std::max(covered, sorted[i].end());
    }
    if (covered < end) {
      return Error(ErrorCode::kInvalidArgument,
                   "push of layer '{}' does not cover trainable tensor '{}': element {} of the "
                   "layer is in no segment",
                   layer.name, tensor.name, covered);
    }
  }
  return OkStatus();
}

std::span<const Segment> Intersecting(std::span<const Segment> sorted, ShardRange range) {
  const uint64_t range_end = range.first + range.elements;
  const auto begin = std::partition_point(sorted.begin(), sorted.end(),
                                          [&](const Segment& s) { return s.end() <= range.first; });
  const auto end = std::partition_point(begin, sorted.end(),
                                        [&](const Segment& s) { return s.offset < range_end; });
  return {begin, end};
}

ShardRange Hull(std::span<const Segment> sorted, ShardRange range) {
  const std::span<const Segment> inside = Intersecting(sorted, range);
  if (inside.empty()) return {range.first, 0};
  const uint64_t first = Clip(inside.front(), range).offset;
  return {first, Clip(inside.back(), range).end() - first};
}

void GatherRange(std::span<const Segment> sorted, ShardRange range, DType wire, ByteSpan target) {
  const uint64_t width = DTypeBytes(wire);
  uint64_t done = range.first;
  const auto zero_until = [&](uint64_t element) {
    std::memset(target.data() + (done - range.first) * width, 0, (element - done) * width);
  };
  for (const Segment& segment : Intersecting(sorted, range)) {
    const Segment piece = Clip(segment, range);
    if (piece.offset > done) zero_until(piece.offset);
    ConvertElements(piece.dtype, piece.data, wire,
                    target.data() + (piece.offset - range.first) * width, piece.count);
    done = piece.end();
  }
  if (done < range.first + range.elements) zero_until(range.first + range.elements);
}

void ScatterRange(std::span<const Segment> sorted, ShardRange range, DType wire,
                  ConstByteSpan source) {
  const uint64_t width = DTypeBytes(wire);
  for (const Segment& segment : Intersecting(sorted, range)) {
    const Segment piece = Clip(segment, range);
    ConvertElements(wire, source.data() + (piece.offset - range.first) * width, piece.dtype,
                    piece.data, piece.count);
  }
}

}  // namespace luwu::client
