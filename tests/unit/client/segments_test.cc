// Segment arithmetic against a model that works element by element.
#include "client/src/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace luwu::client {
namespace {

LayerSpec MakeLayer(uint64_t elements) {
  LayerSpec layer;
  layer.name = "layer";
  layer.elements = elements;
  layer.tensors = {{.name = "t", .shape = {elements}, .offset = 0, .group = 0, .trainable = true}};
  return layer;
}

Segment Of(std::vector<float>& memory, uint64_t first, uint64_t offset, uint64_t count) {
  void* data = memory.data() + first;
  return {DType::kFloat32, static_cast<std::byte*>(data), offset, count};
}

// Random disjoint segments over [0, elements), with memory of their own, shuffled.
struct Scene {
  std::vector<std::vector<float>> memory;
  std::vector<Segment> segments;
  std::vector<std::optional<float>> model;  // by element of the layer
};
Scene RandomScene(std::mt19937& random, uint64_t elements) {
  Scene scene;
  scene.model.resize(elements);
  scene.memory.reserve(elements + 1);
  float next = 1;
  for (uint64_t at = random() % 3; at < elements;) {
    const uint64_t count = std::min<uint64_t>(random() % 6, elements - at);
    std::vector<float>& memory = scene.memory.emplace_back(count + 1);
    for (uint64_t i = 0; i < count; ++i) scene.model[at + i] = memory[i] = next++;
    scene.segments.push_back(Of(memory, 0, at, count));
    at += count + random() % 3;
  }
  std::shuffle(scene.segments.begin(), scene.segments.end(), random);
  return scene;
}

TEST(Segments, GatherMatchesTheElementWiseModel) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const uint64_t elements = 1 + random() % 40;
    Scene scene = RandomScene(random, elements);
    ASSERT_TRUE(PrepareSegments(MakeLayer(elements), &scene.segments).ok());
    const uint64_t first = random() % elements;
    const ShardRange range{first, 1 + random() % (elements - first)};
    std::vector<float> target(range.elements, -1);
    GatherRange(scene.segments, range, DType::kFloat32, std::as_writable_bytes(std::span(target)));
    for (uint64_t i = 0; i < range.elements; ++i) {
      ASSERT_EQ(target[i], scene.model[first + i].value_or(0)) << "element " << first + i;
    }
  }
}

TEST(Segments, ScatterTouchesExactlyTheCoveredElements) {
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    const uint64_t elements = 1 + random() % 40;
    Scene scene = RandomScene(random, elements);
    ASSERT_TRUE(PrepareSegments(MakeLayer(elements), &scene.segments).ok());
    const uint64_t first = random() % elements;
    const ShardRange range{first, 1 + random() % (elements - first)};
    std::vector<float> source(range.elements);
    for (uint64_t i = 0; i < range.elements; ++i) source[i] = 1000 + static_cast<float>(first + i);
    ScatterRange(scene.segments, range, DType::kFloat32, std::as_bytes(std::span(source)));
    for (const Segment& segment : scene.segments) {
      for (uint64_t i = 0; i < segment.count; ++i) {
        const uint64_t element = segment.offset + i;
        const bool inside = element >= first && element < first + range.elements;
        float value = 0;
        std::memcpy(&value, segment.at(element), sizeof value);
        ASSERT_EQ(value, inside ? 1000 + static_cast<float>(element) : *scene.model[element]);
      }
    }
  }
}

TEST(Segments, HullIsTheSmallestRangeOfCoveredElements) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const uint64_t elements = 1 + random() % 40;
    Scene scene = RandomScene(random, elements);
    ASSERT_TRUE(PrepareSegments(MakeLayer(elements), &scene.segments).ok());
    const uint64_t first = random() % elements;
    const ShardRange range{first, 1 + random() % (elements - first)};
    std::optional<uint64_t> low;
    uint64_t high = 0;
    for (uint64_t i = first; i < first + range.elements; ++i) {
      if (!scene.model[i]) continue;
      if (!low) low = i;
      high = i + 1;
    }
    const ShardRange hull = Hull(scene.segments, range);
    ASSERT_EQ(hull.elements, low ? high - *low : 0);
    if (low) {
      ASSERT_EQ(hull.first, *low);
    }
  }
}

TEST(Segments, GatherConvertsToTheWireType) {
  std::vector<float> memory = {1.5f, -2.0f, 3.25f};
  const std::vector<Segment> segments = {Of(memory, 0, 1, 3)};
  std::vector<uint16_t> target(5, 0xffff);
  GatherRange(segments, {0, 5}, DType::kBFloat16, std::as_writable_bytes(std::span(target)));
  const std::vector<uint16_t> expected = {0, FloatToBFloat16(1.5f), FloatToBFloat16(-2.0f),
                                          FloatToBFloat16(3.25f), 0};
  EXPECT_EQ(target, expected);
}

TEST(Segments, MisuseIsRefusedByName) {
  const LayerSpec layer = MakeLayer(10);
  std::vector<float> memory(16);
  struct Case {
    std::vector<Segment> segments;
    ErrorCode code;
    const char* text;
  };
  Segment null = Of(memory, 0, 0, 4);
  null.data = nullptr;
  Segment misaligned = Of(memory, 0, 0, 2);
  misaligned.data += 1;
  Segment f64 = Of(memory, 0, 0, 2);
  f64.dtype = DType::kFloat64;
  const Case cases[] = {
      {{Of(memory, 0, 8, 3)}, ErrorCode::kInvalidArgument, "outside"},
      {{Of(memory, 0, 11, 0)}, ErrorCode::kInvalidArgument, "outside"},
      {{Of(memory, 0, 1, ~uint64_t{0})}, ErrorCode::kInvalidArgument, "outside"},
      {{Of(memory, 0, ~uint64_t{0}, 2)}, ErrorCode::kInvalidArgument, "outside"},
      {{Of(memory, 0, 0, 4), Of(memory, 8, 3, 4)}, ErrorCode::kInvalidArgument, "overlap"},
      {{Of(memory, 8, 3, 4), Of(memory, 0, 0, 4)}, ErrorCode::kInvalidArgument, "overlap"},
      {{null}, ErrorCode::kInvalidArgument, "no data"},
      {{misaligned}, ErrorCode::kInvalidArgument, "aligned"},
      {{f64}, ErrorCode::kUnsupported, "dtype"},
  };
  for (const Case& c : cases) {
    std::vector<Segment> segments = c.segments;
    const Status status = PrepareSegments(layer, &segments);
    EXPECT_EQ(CodeOf(status), c.code) << c.text;
    EXPECT_NE(MessageOf(status).find(c.text), std::string::npos) << MessageOf(status);
    EXPECT_NE(MessageOf(status).find("'layer'"), std::string::npos) << MessageOf(status);
  }
}

TEST(Segments, EmptySegmentsAreDropped) {
  std::vector<float> memory(4);
  std::vector<Segment> segments = {{DType::kFloat32, nullptr, 3, 0}, Of(memory, 0, 0, 4)};
  ASSERT_TRUE(PrepareSegments(MakeLayer(10), &segments).ok());
  EXPECT_EQ(segments.size(), 1u);
}

// Coverage of trainable tensors against a per-element model.
TEST(Segments, CoverageMatchesTheElementWiseModel) {
  std::mt19937 random(6);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const uint64_t elements = 1 + random() % 24;
    LayerSpec layer = MakeLayer(elements);
    layer.tensors.clear();
    for (uint64_t at = 0; at < elements;) {
      const uint64_t count = 1 + random() % std::min<uint64_t>(5, elements - at);
      layer.tensors.push_back({.name = "t" + std::to_string(at),
                               .shape = {count},
                               .offset = at,
                               .group = 0,
                               .trainable = random() % 3 != 0});
      at += count + random() % 2;
    }
    Scene scene = RandomScene(random, elements);
    // Half of the rounds cover nearly everything.
    if (random() % 2 == 0) {
      scene.memory.emplace_back(elements);
      const uint64_t cut = random() % (elements + 1);
      scene.segments = {Of(scene.memory.back(), 0, 0, cut),
                        Of(scene.memory.back(), cut, cut, elements - cut)};
      scene.model.assign(elements, 1.0f);
      if (random() % 2 == 0) {
        scene.segments.pop_back();
        for (uint64_t i = cut; i < elements; ++i) scene.model[i].reset();
      }
    }
    ASSERT_TRUE(PrepareSegments(layer, &scene.segments).ok());
    const TensorSpec* missing = nullptr;
    for (const TensorSpec& tensor : layer.tensors) {
      for (uint64_t i = 0; missing == nullptr && tensor.trainable && i < tensor.shape[0]; ++i) {
        if (!scene.model[tensor.offset + i]) missing = &tensor;
      }
    }
    const Status status = CheckCoverage(layer, scene.segments);
    ASSERT_EQ(status.ok(), missing == nullptr) << MessageOf(status);
    if (missing == nullptr) continue;
    ++refused;
    ASSERT_NE(MessageOf(status).find("'" + missing->name + "'"), std::string::npos)
        << MessageOf(status);
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace luwu::client
