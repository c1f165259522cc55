// The staging on a GPU that runs late and in any order: a wait that is missing, or a slot that is
// used again too early, gives wrong bytes.
#include "client/src/device/stager.h"

#include <cmath>

#include "tests/unit/device/gpu_world.h"

namespace luwu::client {
namespace {

constexpr StagerOptions kSmall = {.slots = 3, .slot_bytes = 64 * sizeof(float)};

struct Variant {
  uint64_t seed = 0;
  bool kernels = false;
};
class StagerRuns : public ::testing::TestWithParam<uint64_t> {
 protected:
  Variant variant() const { return {GetParam() / 2, GetParam() % 2 == 1}; }
};

TEST_P(StagerRuns, FetchesComeAfterEarlierAndBeforeLaterWorkOfTheStream) {
  GpuWorld world(variant().seed, variant().kernels);
  world.MakeStager(kSmall);
  world.MakeLayer(700, 48, variant().seed % 3 == 0);
  for (uint64_t version = 0; version < 4; ++version) {
    std::vector<std::vector<uint8_t>> before;
    std::vector<std::vector<uint8_t>> seen_before;
    std::vector<std::vector<uint8_t>> seen_after;
    for (const Segment& segment : world.segments()) {
      before.push_back(world.Noise(GpuWorld::BytesOf(segment)));
      seen_before.emplace_back(before.back().size());
      seen_after.emplace_back(before.back().size());
    }
    for (size_t i = 0; i < before.size(); ++i) {  // what computes with the memory until now
      const cuda::Address address = GpuWorld::AddressOf(world.segments()[i]);
      testing::LaunchWrite(world.stream(), address, before[i]);
      testing::LaunchRead(world.stream(), address, &seen_before[i]);
    }
    ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
    const auto fill = [&](const std::vector<Segment>& host) {
      for (const Segment& segment : host) {
        const auto values = Values(version, segment, segment.dtype);
        std::memcpy(segment.data, values.data(), values.size());
      }
      return OkStatus();
    };
    ASSERT_TRUE(world.stager().Fetch(world.Layer(DType::kBFloat16), fill, world.arrived()).ok());
    ASSERT_TRUE(world.device().Wait(world.stream(), world.arrived()).ok());
    for (size_t i = 0; i < before.size(); ++i) {
      testing::LaunchRead(world.stream(), GpuWorld::AddressOf(world.segments()[i]), &seen_after[i]);
    }
    testing::SettleFakeCuda();
    for (size_t i = 0; i < before.size(); ++i) {
      const Segment& segment = world.segments()[i];
      const auto expected = Values(version, segment, segment.dtype);
      ASSERT_EQ(seen_before[i], before[i]);
      ASSERT_EQ(std::memcmp(seen_after[i].data(), expected.data(), expected.size()), 0);
    }
  }
}

// Takes all chunks of a push and compares them with the gradient; looks twice, for they must stay.
void CheckPush(GpuWorld& world, Stager::Push& push, uint64_t seed, float scale) {
  std::vector<Segment> host;
  Chunk chunk;
  uint32_t shards = 0;
  uint64_t elements = 0;
  while (true) {
    const StatusOr<bool> more = push.Next(&host, &chunk);
    ASSERT_TRUE(more.ok()) << more.status();
    if (!*more) break;
    EXPECT_EQ(chunk.first_shard, shards);
    shards = chunk.end_shard;
    for (int look = 0; look < 2; ++look) {
      for (const Segment& segment : host) {
        std::vector<float> got(segment.count);
        ConvertElements(segment.dtype, segment.data, DType::kFloat32,
                        reinterpret_cast<std::byte*>(got.data()), segment.count);
        for (uint64_t i = 0; i < segment.count; ++i) {
          ASSERT_EQ(got[i], scale * ElementValue(seed, segment.offset + i));
        }
        if (look == 0) elements += segment.count;
      }
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(shards, world.shards().size());
  uint64_t expected = 0;
  for (const Segment& segment : world.segments()) expected += segment.count;
  EXPECT_EQ(elements, expected);
}

void WriteGradient(GpuWorld& world, uint64_t seed) {
  for (const Segment& segment : world.segments()) {
    const auto values = Values(seed, segment, segment.dtype);
    const auto* const begin = reinterpret_cast<const uint8_t*>(values.data());
    testing::LaunchWrite(world.stream(), GpuWorld::AddressOf(segment),
                         {begin, begin + values.size()});
  }
}

TEST_P(StagerRuns, PushesSendWhatTheStreamHasWrittenBefore) {
  GpuWorld world(variant().seed, variant().kernels);
  world.MakeStager(kSmall);
  world.MakeLayer(700, 48, variant().seed % 3 == 0);
  for (uint64_t step = 0; step < 4; ++step) {
    WriteGradient(world, step);
    ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
    Stager::Push push(world.stager(), world.Layer(DType::kFloat32), 1.0f, nullptr);
    CheckPush(world, push, step, 1.0f);
  }
}

TEST_P(StagerRuns, FetchesAndPushesRunBesideEachOther) {
  GpuWorld world(variant().seed, variant().kernels);
  world.MakeStager(kSmall);
  world.MakeLayer(500, 48, false);
  WriteGradient(world, 5);
  ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
  // Pushes read what fetches write: both see the same values.
  std::thread fetches([&] {
    const auto fill = [&](const std::vector<Segment>& host) {
      for (const Segment& segment : host) {
        const auto values = Values(5, segment, segment.dtype);
        std::memcpy(segment.data, values.data(), values.size());
      }
      return OkStatus();
    };
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(world.stager().Fetch(world.Layer(DType::kFloat32), fill, world.arrived()).ok());
    }
  });
  for (int i = 0; i < 5; ++i) {
    Stager::Push push(world.stager(), world.Layer(DType::kFloat32), 1.0f, nullptr);
    CheckPush(world, push, 5, 1.0f);
  }
  fetches.join();
}

INSTANTIATE_TEST_SUITE_P(Seeds, StagerRuns, ::testing::Range<uint64_t>(0, 24));

TEST(Stager, ScalesAndTakesStock) {
  GpuWorld world(9);
  world.MakeStager(kSmall);
  world.MakeLayer(700, 48, true);
  for (uint64_t step = 0; step < 3; ++step) {  // each starts from nothing
    WriteGradient(world, step);
    ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
    double expected = 0;
    for (const Segment& segment : world.segments()) {
      for (uint64_t i = 0; i < segment.count; ++i) {
        expected += std::pow(0.5 * ElementValue(step, segment.offset + i), 2);
      }
    }
    GradientCheck check;
    {
      Stager::Push push(world.stager(), world.Layer(DType::kFloat32), 0.5f, &check);
      CheckPush(world, push, step, 0.5f);
    }
    EXPECT_EQ(check.non_finite, 0u);
    EXPECT_DOUBLE_EQ(check.square_sum, expected);
  }
}

TEST(Stager, CountsWhatIsNotFinite) {
  GpuWorld world(10);
  world.MakeStager(kSmall);
  world.MakeLayer(300, 48, false);
  WriteGradient(world, 0);
  const Segment& last = world.segments().back();
  const std::vector<uint8_t> all_ones(DTypeBytes(last.dtype), 0xff);  // a NaN in every dtype
  testing::LaunchWrite(world.stream(), GpuWorld::AddressOf(last), all_ones);
  ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
  GradientCheck check;
  Stager::Push push(world.stager(), world.Layer(DType::kBFloat16), 1.0f, &check);
  std::vector<Segment> host;
  Chunk chunk;
  while (true) {
    const StatusOr<bool> more = push.Next(&host, &chunk);
    ASSERT_TRUE(more.ok());
    if (!*more) break;
  }
  EXPECT_EQ(check.non_finite, 1u);
}

}  // namespace
}  // namespace luwu::client
