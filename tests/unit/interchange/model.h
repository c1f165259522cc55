// A small job for import and export: layers of several tensors with gaps, frozen parts and ragged
// shards; and its values on every node, in plain arrays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor/placement.h"
#include "common/wire/shard_map.h"
#include "server/interchange/export_run.h"
#include "server/interchange/import_run.h"

namespace luwu::interchange {

inline JobSpec SmallSpec() {
  JobSpec spec;
  spec.name = "small";
  spec.world_size = 1;
  spec.shard_elements = 64;
  spec.optimizer.kind = OptimizerKind::kAdamW;
  spec.layers = {
      {"h.0",
       300,
       {{"h.0.w", {10, 12}, 0, 0, true},
        {"h.0.b", {13}, 130, 0, true},
        {"h.0.frozen", {100}, 150, 0, false}}},
      {"h.1", 65, {{"h.1.s", {}, 0, 0, true}, {"h.1.w", {64}, 1, 0, true}}},
      {"table", 100, {{"table.w", {100}, 0, 0, false}}},
  };
  EXPECT_TRUE(ValidateJobSpec(spec).ok()) << ValidateJobSpec(spec);
  return spec;
}

inline std::vector<Node> SomeNodes(uint32_t count) {
  std::vector<Node> nodes;
  for (uint32_t i = 0; i < count; ++i) {
    nodes.push_back({"n" + std::to_string(i), 1 + i % 2, "127.0.0.1:" + std::to_string(7000 + i),
                     "127.0.0.1:" + std::to_string(8000 + i), ""});
  }
  return nodes;
}

// What one array of one layer holds, all nodes together.
using LayerValues = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;  // layer, array

inline LayerValues Untouched(const JobSpec& spec, uint32_t arrays, float value = -1) {
  LayerValues values;
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    for (uint32_t array = 0; array < arrays; ++array) {
      values[{layer, array}].assign(spec.layers[layer].elements, value);
    }
  }
  return values;
}

// Every value is another one and not a whole number.
inline LayerValues Different(const JobSpec& spec, uint32_t arrays) {
  LayerValues values = Untouched(spec, arrays);
  float next = 0.125f;
  for (auto& [place, list] : values) {
    for (float& value : list) value = next += 1;
  }
  return values;
}

// One node's part of them, as target and as source.
class NodePart final : public TensorTarget, public TensorSource {
 public:
  NodePart(const JobSpec& spec, uint32_t nodes, uint32_t node, LayerValues* values)
      : spec_(spec), map_(spec_, Placement(SomeNodes(nodes), spec_), node), values_(values) {}

  const JobSpec& spec() const override { return spec_; }
  const std::vector<LocalShard>& shards() const override { return map_.shards(); }
  uint32_t moments() const override { return 2; }

  Status Write(const TensorTarget::Place& place, std::span<const float> values) override {
    const auto index = map_.IndexOf(place.layer, place.shard);
    EXPECT_TRUE(index.has_value()) << "of another node";
    const LocalShard& shard = map_.shards()[*index];
    EXPECT_LE(place.offset + values.size(), shard.elements);
    std::copy(values.begin(), values.end(),
              values_->at({place.layer, place.array}).begin() +
                  static_cast<ptrdiff_t>(shard.first_element + place.offset));
    written += values.size();
    return OkStatus();
  }

  // A shard at a time.
  Status Read(const TensorSource::Place& place, SourceBatch* batch) override {
    reads.push_back({place.layer, place.skip_elements, place.array});
    const ShardMap::IndexRange range = map_.LayerRange(place.layer);
    uint64_t skip = place.skip_elements;
    batch->step = step;
    batch->end = true;
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const LocalShard& shard = map_.shards()[i];
      if (skip >= shard.elements) {
        skip -= shard.elements;
        continue;
      }
      const auto from = values_->at({place.layer, place.array}).begin() +
                        static_cast<ptrdiff_t>(shard.first_element);
      batch->runs.push_back({shard.first_element, shard.elements});
      batch->values.assign(from, from + static_cast<ptrdiff_t>(shard.elements));
      batch->end = i + 1 == range.end;
      break;
    }
    return OkStatus();
  }

  uint64_t written = 0;
  uint64_t step = 7;
  std::vector<std::array<uint64_t, 3>> reads;  // layer, elements skipped, array

 private:
  const JobSpec spec_;
  const ShardMap map_;
  LayerValues* const values_;
};

// The values of one tensor.
inline std::vector<float> TensorValues(const JobSpec& spec, const LayerValues& values,
                                       uint32_t layer, uint32_t tensor, uint32_t array = 0) {
  const TensorSpec& wanted = spec.layers[layer].tensors[tensor];
  const auto begin = values.at({layer, array}).begin() + static_cast<ptrdiff_t>(wanted.offset);
  return {begin, begin + static_cast<ptrdiff_t>(*TensorElements(wanted))};
}

}  // namespace luwu::interchange
