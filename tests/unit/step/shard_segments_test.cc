#include "server/step/shard_segments.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::Tensor;

// What lies at one element of the layer, found by looking at every tensor.
Segment Expected(const LayerSpec& layer, uint64_t element) {
  Segment segment;
  for (uint32_t i = 0; i < layer.tensors.size(); ++i) {
    const TensorSpec& tensor = layer.tensors[i];
    if (element >= tensor.offset && element < tensor.offset + tensor.shape[0]) {
      segment.tensor = i;
      segment.group = tensor.group;
      segment.trainable = tensor.trainable;
    }
  }
  return segment;
}

TEST(ShardSegments, EveryElementOfEveryShardIsInTheRightSegment) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    LayerSpec layer;
    layer.elements = 0;
    for (uint32_t i = 0; i < 1 + random() % 6; ++i) {
      layer.elements += random() % 3 * (random() % 40);  // often no gap
      const uint64_t elements = 1 + random() % 100;
      layer.tensors.push_back(
          Tensor("t", elements, layer.elements, random() % 2 == 0, random() % 3));
      layer.elements += elements;
    }
    layer.elements += random() % 30;
    for (uint64_t k = 0; k < ShardCount(layer.elements, 64); ++k) {
      const ShardRange range = RangeOfShard(layer.elements, 64, k);
      const LocalShard shard{0, static_cast<uint32_t>(k), range.first, range.elements, 0};
      uint64_t at = 0;
      for (const Segment& segment : SegmentsOf(layer, shard)) {
        ASSERT_EQ(segment.first, at);
        ASSERT_GT(segment.count, 0u);
        for (uint64_t i = 0; i < segment.count; ++i, ++at) {
          const Segment expected = Expected(layer, range.first + at);
          ASSERT_EQ(segment.tensor, expected.tensor) << "element " << range.first + at;
          ASSERT_EQ(segment.group, expected.group);
          ASSERT_EQ(segment.trainable, expected.trainable);
        }
      }
      ASSERT_EQ(at, range.elements);
    }
  }
}

}  // namespace
}  // namespace luwu
