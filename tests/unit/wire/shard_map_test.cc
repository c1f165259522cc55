#include "common/wire/shard_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "common/wire/board.h"
#include "common/wire/shard_header.h"
#include "common/wire/slot_trailer.h"

namespace luwu {
namespace {

std::vector<Node> NodesOf(const std::vector<uint32_t>& weights) {
  std::vector<Node> out;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string name = "n" + std::to_string(i);
    out.push_back({name, weights[i], name + ":1", name + ":2", ""});
  }
  return out;
}

LayerSpec LayerOf(const std::string& name, uint64_t elements, bool trainable = true) {
  return {name, elements, {{name + ".w", {elements}, 0, 0, trainable}}};
}

JobSpec SpecOf(const std::vector<LayerSpec>& layers, uint64_t shard_elements) {
  JobSpec spec;
  spec.name = "job";
  spec.world_size = 1;
  spec.optimizer.kind = OptimizerKind::kAdamW;
  spec.shard_elements = shard_elements;
  spec.layers = layers;
  return spec;
}

// A claim on bytes of a region; two claims must not overlap.
class Claims {
 public:
  explicit Claims(uint64_t bytes) : bytes_(bytes) {}
  void Add(uint64_t offset, uint64_t length, const std::string& what) {
    ASSERT_TRUE(RangeFits(offset, length, bytes_)) << what << " leaves the region";
    const auto next = claimed_.lower_bound(offset);
    if (next != claimed_.end()) {
      ASSERT_LE(offset + length, next->first) << what << " overlaps " << next->second.second;
    }
    if (next != claimed_.begin()) {
      const auto& before = *std::prev(next);
      ASSERT_LE(before.second.first, offset) << what << " overlaps " << before.second.second;
    }
    claimed_[offset] = {offset + length, what};
  }

 private:
  uint64_t bytes_;
  std::map<uint64_t, std::pair<uint64_t, std::string>> claimed_;  // begin -> end, what
};

void ExpectRegionsAreDisjoint(const JobSpec& spec, const ShardMap& map) {
  Claims weights(map.weights_bytes());
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    const LocalShard& shard = map.shards()[i];
    const uint64_t bytes = shard.elements * DTypeBytes(spec.served_dtype);
    const bool trainable = spec.layers[shard.layer].trainable();
    for (const uint64_t version : {0, 1}) {
      const std::string what = fmt::format("shard {} version {}", i, version);
      weights.Add(ShardMap::header_offset(i, version), sizeof(ShardHeader), "header of " + what);
      ASSERT_EQ(ShardMap::header_offset(i, version) % 64, 0u);
      if (trainable || version == 0) weights.Add(map.payload_offset(i, version), bytes, what);
      ASSERT_EQ(map.payload_offset(i, version + 2), map.payload_offset(i, version));
      if (!trainable) {
        ASSERT_EQ(map.payload_offset(i, version), map.payload_offset(i, 0));
      }
      ASSERT_EQ(map.payload_offset(i, version) % 2, 0u);
    }
  }
  ASSERT_EQ(map.inbox_bytes(), map.slot_bytes() * spec.slots_per_worker);
  ASSERT_EQ(map.board_bytes(), BoardBytes(spec.slots_per_worker, map.shard_count()));
}

// Brute force: whatever the spec, the nodes and the weights, every element has one owner, the
// tables of all nodes agree, and nothing overlaps in any region.
TEST(ShardMapTest, EveryElementIsOwnedExactlyOnce) {
  std::mt19937 random(5);
  const DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (int round = 0; round < 300; ++round) {
    std::vector<uint32_t> weights(1 + random() % 7);
    for (uint32_t& weight : weights) weight = random() % 4;
    weights[random() % weights.size()] = 1 + random() % 5;
    const uint64_t shard_elements = 64 * (1 + random() % 4);
    std::vector<LayerSpec> layers(1 + random() % 12);
    for (size_t i = 0; i < layers.size(); ++i) {
      // Around multiples of 64 and of the shard size, and anything.
      const uint64_t around = (random() % 2 == 0 ? 64 : shard_elements) * (1 + random() % 9);
      const uint64_t elements = random() % 2 == 0 ? around + random() % 3 - 1 : 1 + random() % 999;
      layers[i] = LayerOf("l" + std::to_string(i), elements, random() % 3 != 0);
    }
    JobSpec spec = SpecOf(layers, shard_elements);
    spec.served_dtype = kDTypes[random() % 3];
    spec.gradient_dtype = kDTypes[random() % 3];
    spec.slots_per_worker = 2 + random() % 9;
    ASSERT_TRUE(ValidateJobSpec(spec).ok()) << ToString(ValidateJobSpec(spec));
    const std::vector<Node> nodes = NodesOf(weights);
    const Placement placement(nodes, spec);

    std::vector<std::vector<int>> owners(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) owners[i].assign(layers[i].elements, 0);
    for (uint32_t node = 0; node < nodes.size(); ++node) {
      const ShardMap map(spec, placement, node);
      uint64_t elements = 0;
      for (uint32_t i = 0; i < map.shard_count(); ++i) {
        const LocalShard& shard = map.shards()[i];
        ASSERT_EQ(map.IndexOf(shard.layer, shard.shard), i);
        const ShardMap::IndexRange range = map.LayerRange(shard.layer);
        ASSERT_TRUE(range.begin <= i && i < range.end);
        ASSERT_EQ(shard.first_element, shard.shard * shard_elements);
        for (uint64_t e = 0; e < shard.elements; ++e) {
          ++owners[shard.layer].at(shard.first_element + e);
        }
        elements += shard.elements;
        if (!spec.layers[shard.layer].trainable()) continue;
        ASSERT_GE(map.slot_bytes(), SlotBytes(shard.elements * DTypeBytes(spec.gradient_dtype)));
      }
      ASSERT_EQ(map.elements(), elements);
      if (weights[node] == 0) {
        ASSERT_EQ(map.shard_count(), 0u);
      }
      ExpectRegionsAreDisjoint(spec, map);
    }
    for (const std::vector<int>& layer : owners) {
      for (const int count : layer) ASSERT_EQ(count, 1) << "round " << round;
    }
  }
}

TEST(ShardMapTest, AtTheEdgesOfAlignmentAndShard) {
  for (const uint64_t elements : {1, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    const JobSpec spec = SpecOf({LayerOf("l", elements)}, 128);
    const ShardMap map(spec, Placement(NodesOf({1}), spec), 0);
    EXPECT_EQ(map.shard_count(), (elements + 127) / 128) << elements;
    EXPECT_EQ(map.elements(), elements);
    EXPECT_EQ(map.shards().back().first_element + map.shards().back().elements, elements);
    EXPECT_EQ(map.slot_bytes(), SlotBytes(2 * std::min<uint64_t>(elements, 128)));
  }
}

TEST(ShardMapTest, ALayerOfOneNodeIsOneContiguousRun) {
  const JobSpec spec = SpecOf({LayerOf("a", 700), LayerOf("b", 300)}, 64);
  const ShardMap map(spec, Placement(NodesOf({1}), spec), 0);
  for (const uint64_t version : {0, 1}) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const ShardMap::IndexRange range = map.LayerRange(layer);
      EXPECT_EQ(map.payload_offset(range.begin, version) % 4096, 0u);
      for (uint32_t i = range.begin + 1; i < range.end; ++i) {
        EXPECT_EQ(map.payload_offset(i, version),
                  map.payload_offset(i - 1, version) + 2 * map.shards()[i - 1].elements);
      }
    }
  }
}

TEST(ShardMapTest, AWindowHasEqualSlotsOfTheLargestShardThatBeginOnPages) {
  const JobSpec spec = SpecOf({LayerOf("a", 3000), LayerOf("b", 700)}, 1024);
  const ShardMap map(spec, Placement(NodesOf({1}), spec), 0, 65);
  EXPECT_TRUE(map.has_window());
  EXPECT_EQ(map.window_slot_bytes(), AlignUp(1024 * DTypeBytes(spec.served_dtype), 4096));
  EXPECT_EQ(map.window_payload_offset(0), 8192u) << "65 headers take more than a page";
  for (uint32_t slot = 0; slot < 65; ++slot) {
    EXPECT_EQ(ShardMap::window_header_offset(slot), slot * sizeof(ShardHeader));
    EXPECT_EQ(map.window_payload_offset(slot), 8192 + slot * map.window_slot_bytes());
  }
  EXPECT_EQ(map.weights_bytes(), 8192 + 65 * map.window_slot_bytes());
  EXPECT_EQ(map.board_bytes(), BoardBytes(spec.slots_per_worker, map.shard_count(), true));
}

TEST(ShardMapTest, FrozenLayersTakeOneCopy) {
  constexpr uint64_t kElements = uint64_t{1} << 20;
  const JobSpec trained = SpecOf({LayerOf("a", kElements), LayerOf("b", kElements)}, 1 << 16);
  const JobSpec frozen = SpecOf({LayerOf("a", kElements, false), LayerOf("b", kElements)}, 1 << 16);
  const Placement placement(NodesOf({1}), trained);
  EXPECT_EQ(ShardMap(trained, placement, 0).weights_bytes() - 2 * kElements,
            ShardMap(frozen, placement, 0).weights_bytes());
}

TEST(ShardMapTest, ForeignAndUnknownShardsHaveNoIndex) {
  const JobSpec spec = SpecOf({LayerOf("a", 64 * 4), LayerOf("b", 64)}, 64);
  const ShardMap map(spec, Placement(NodesOf({1, 1}), spec), 0);
  EXPECT_TRUE(map.IndexOf(0, 0).has_value());
  EXPECT_FALSE(map.IndexOf(0, 1).has_value()) << "the other node's";
  EXPECT_TRUE(map.IndexOf(0, 2).has_value());
  EXPECT_FALSE(map.IndexOf(0, 4).has_value());
  EXPECT_FALSE(map.IndexOf(0, ~uint64_t{0}).has_value());
  EXPECT_FALSE(map.IndexOf(0, uint64_t{1} << 32).has_value()) << "must not wrap to shard 0";
  EXPECT_FALSE(map.IndexOf(2, 0).has_value());
  EXPECT_FALSE(map.IndexOf(~0u, 0).has_value());
}

TEST(ShardMapTest, ANodeWithoutShardsStillHasSmallRegions) {
  const JobSpec spec = SpecOf({LayerOf("a", 64)}, 64);
  const ShardMap map(spec, Placement(NodesOf({1, 0}), spec), 1);
  EXPECT_EQ(map.shard_count(), 0u);
  EXPECT_EQ(map.elements(), 0u);
  EXPECT_EQ(map.slot_bytes(), 4096u) << "closes without payload still need a slot";
  EXPECT_EQ(map.board_bytes(), 4096u);
}

TEST(ShardMapTest, ManyShards) {
  const JobSpec spec = SpecOf({LayerOf("a", 64ull * 200000), LayerOf("b", 64)}, 64);
  const ShardMap map(spec, Placement(NodesOf({1, 2}), spec), 1);
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    const LocalShard& shard = map.shards()[i];
    ASSERT_EQ(map.IndexOf(shard.layer, shard.shard), i);
  }
}

}  // namespace
}  // namespace luwu
