#include "server/store/state_shape.h"

namespace luwu {

optim::StateArrays StateShape::ArraysAt(std::byte* base) const {
  optim::StateArrays arrays;
  for (uint32_t i = 0; i < optim::kStateArraysMax && array_bytes[i] != 0; ++i) {
    arrays.data[i] = base;
    base += array_bytes[i];
  }
  return arrays;
}

StateShape ShapeOf(const JobSpec& spec, const LocalShard& shard) {
  const LayerSpec& layer = spec.layers[shard.layer];
  optim::StateLayout layout = {1, {optim::StateFormat::kFloat32}};
  StateShape shape;
  if (layer.trainable()) {
    layout = optim::LayoutOf(spec.optimizer);
    if (KeepsUndoState(spec)) shape.generations = 2;
    if (spec.optimizer.master_format == MasterFormat::kSplit) {
      shape.served_bytes = shard.elements * DTypeBytes(spec.served_dtype);
    }
  }
  const uint64_t segments_max = 2 * layer.tensors.size() + 1;  // tensors and the gaps around them
  for (uint32_t i = 0; i < layout.count; ++i) {
    shape.array_bytes[i] = optim::ArrayBytes(layout.formats[i], shard.elements, segments_max);
    shape.generation_bytes += shape.array_bytes[i];
  }
  return shape;
}

}  // namespace luwu
