// Every driver call fails once, deadlines pass, sessions close: the error arrives, and nothing
// touches the caller's memory after it.
#include <thread>

#include "tests/unit/device/gpu_world.h"

namespace luwu::client {
namespace {

constexpr StagerOptions kSmall = {.slots = 2, .slot_bytes = 64 * sizeof(float)};
constexpr cuda::Result kIllegalAddress = 700;
constexpr const char* kHotCalls[] = {"cuEventRecord",     "cuEventQuery",      "cuStreamWaitEvent",
                                     "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernel",
                                     "cuMemsetD8Async"};

Status FillWithZero(const std::vector<Segment>& host) {
  for (const Segment& segment : host) std::memset(segment.data, 0, GpuWorld::BytesOf(segment));
  return OkStatus();
}

Status PushAll(GpuWorld& world, const StagedLayer& layer, GradientCheck* check) {
  Stager::Push push(world.stager(), layer, 1.0f, check);
  std::vector<Segment> host;
  Chunk chunk;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, push.Next(&host, &chunk));
    if (!more) return OkStatus();
  }
}

// Overwrites the caller's memory and sees that it stays so.
void ExpectUntouched(GpuWorld& world) {
  std::vector<std::vector<uint8_t>> written;
  for (const Segment& segment : world.segments()) {
    written.push_back(world.Noise(GpuWorld::BytesOf(segment)));
    testing::WriteGpu(GpuWorld::AddressOf(segment), written.back().data(), written.back().size());
  }
  testing::SettleFakeCuda();
  for (size_t i = 0; i < written.size(); ++i) {
    std::vector<uint8_t> now(written[i].size());
    testing::ReadGpu(GpuWorld::AddressOf(world.segments()[i]), now.data(), now.size());
    EXPECT_EQ(now, written[i]);
  }
}

TEST(StagerFaults, EveryCallThatFailsEndsTheFetchAndTheNextOneWorks) {
  for (const char* const call : kHotCalls) {
    for (int after = 0; after < 6; ++after) {
      GpuWorld world(static_cast<uint64_t>(after));
      world.MakeStager(kSmall);
      world.MakeLayer(500, 48, false);
      ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
      testing::FailCuda(call, kIllegalAddress, after);
      const StagedLayer layer = world.Layer(DType::kFloat32);
      const Status status = world.stager().Fetch(layer, FillWithZero, world.arrived());
      if (!status.ok()) {
        EXPECT_EQ(CodeOf(status), ErrorCode::kState);
        EXPECT_NE(MessageOf(status).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
        ExpectUntouched(world);
      }
      testing::FailCuda(call, cuda::kSuccess);
      EXPECT_TRUE(world.stager().Fetch(layer, FillWithZero, world.arrived()).ok());
    }
  }
}

TEST(StagerFaults, EveryCallThatFailsEndsThePushAndTheNextOneWorks) {
  for (const char* const call : kHotCalls) {
    for (int after = 0; after < 6; ++after) {
      GpuWorld world(static_cast<uint64_t>(after));
      world.MakeStager(kSmall);
      world.MakeLayer(500, 48, false);
      ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
      testing::FailCuda(call, kIllegalAddress, after);
      GradientCheck check;
      const Status status = PushAll(world, world.Layer(DType::kFloat32), &check);
      EXPECT_TRUE(status.ok() || CodeOf(status) == ErrorCode::kState) << status;
      testing::FailCuda(call, cuda::kSuccess);
      EXPECT_TRUE(PushAll(world, world.Layer(DType::kFloat32), &check).ok());
    }
  }
}

TEST(StagerFaults, AFetchThatTheNetworkFailsLeavesNoCopyBehind) {
  GpuWorld world(4);
  world.MakeStager(kSmall);
  world.MakeLayer(500, 48, false);
  ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
  int calls = 0;
  const auto fill = [&](const std::vector<Segment>& host) {
    RETURN_IF_ERROR(FillWithZero(host));
    return ++calls < 3 ? OkStatus() : Error(ErrorCode::kNodeLost, "gone");
  };
  const Status status = world.stager().Fetch(world.Layer(DType::kFloat32), fill, world.arrived());
  EXPECT_EQ(CodeOf(status), ErrorCode::kNodeLost);
  ExpectUntouched(world);
}

TEST(StagerFaults, APushWhoseStreamIsBusyEndsAtItsDeadline) {
  GpuWorld world(5);
  world.MakeStager(kSmall);
  world.MakeLayer(500, 48, false);
  testing::HoldStream(world.stream());
  ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
  StagedLayer layer = world.Layer(DType::kFloat32);
  layer.deadline = DeadlineAfter(20);
  {
    Stager::Push push(world.stager(), layer, 1.0f, nullptr);
    std::vector<Segment> host;
    Chunk chunk;
    EXPECT_EQ(CodeOf(push.Next(&host, &chunk).status()), ErrorCode::kDeadline);
    EXPECT_GT(testing::FakeCudaPending(), 0u);
    testing::ReleaseStream(world.stream());
  }
  EXPECT_EQ(testing::FakeCudaPending(), 0u);  // the gradient is the caller's again
}

TEST(StagerFaults, ACancelledPushEnds) {
  GpuWorld world(6);
  world.MakeStager(kSmall);
  world.MakeLayer(500, 48, false);
  testing::HoldStream(world.stream());
  ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
  std::thread closer([&] { world.stager().Cancel(); });
  Stager::Push push(world.stager(), world.Layer(DType::kFloat32), 1.0f, nullptr);
  std::vector<Segment> host;
  Chunk chunk;
  EXPECT_EQ(CodeOf(push.Next(&host, &chunk).status()), ErrorCode::kCancelled);
  closer.join();
  testing::ReleaseStream(world.stream());
}

// The caller's stream stands still until the test lets it go: whoever waited for it would hang.
TEST(StagerFaults, FetchesThatFitIntoTheRingDoNotWaitForTheCallersStream) {
  GpuWorld world(7);
  world.MakeStager(kSmall);
  world.MakeLayer(96, 48, false);
  testing::HoldStream(world.stream());
  ASSERT_TRUE(world.device().Record(world.ready(), world.stream()).ok());
  EXPECT_TRUE(
      world.stager().Fetch(world.Layer(DType::kFloat32), FillWithZero, world.arrived()).ok());
  EXPECT_FALSE(*world.device().IsDone(world.arrived()));
  testing::ReleaseStream(world.stream());
}

TEST(StagerFaults, MemoryThatIsNotThereIsSaid) {
  for (const char* const call :
       {"cuMemHostAlloc", "cuMemAlloc", "cuStreamCreate", "cuEventCreate"}) {
    for (int after = 0; after < 3; ++after) {
      GpuWorld world(8);
      testing::FailCuda(call, cuda::kOutOfMemory, after);
      const auto stager = Stager::Make(world.device(), kSmall);
      if (stager.ok()) continue;  // it calls less often
      EXPECT_EQ(CodeOf(stager.status()), ErrorCode::kResourceExhausted) << call;
    }
  }
}

}  // namespace
}  // namespace luwu::client
