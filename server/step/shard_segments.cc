#include "server/step/shard_segments.h"

#include <algorithm>

#include "common/base/check.h"

namespace luwu {

std::vector<Segment> SegmentsOf(const LayerSpec& layer, const LocalShard& shard) {
  std::vector<Segment> segments;
  const uint64_t end = shard.first_element + shard.elements;
  uint64_t at = shard.first_element;  // within the layer
  const auto add = [&](uint64_t until, uint32_t tensor, uint32_t group, bool trainable) {
    if (until <= at) return;
    segments.push_back({at - shard.first_element, until - at, tensor, group, trainable});
    at = until;
  };
  for (uint32_t i = 0; i < layer.tensors.size() && at < end; ++i) {
    const TensorSpec& tensor = layer.tensors[i];
    const StatusOr<uint64_t> elements = TensorElements(tensor);
    LUWU_CHECK(elements.ok(), "the spec was validated");
    if (tensor.offset + *elements <= at) continue;
    add(std::min(tensor.offset, end), kNoTensor, 0, false);
    add(std::min(tensor.offset + *elements, end), i, tensor.group, tensor.trainable);
  }
  add(end, kNoTensor, 0, false);
  return segments;
}

}  // namespace luwu
