// One GPU over the fake driver.
#include "client/src/device/device.h"

#include "client/src/device/event_pool.h"
#include "tests/unit/device/gpu_world.h"

namespace luwu::client {
namespace {

TEST(Device, SaysWhereMemoryLies) {
  testing::ResetFakeCuda(1, 2);
  const auto first = *Device::Open(testing::FakeCuda(), 0, {});
  const auto second = *Device::Open(testing::FakeCuda(), 1, {});
  const OwnedMemory here = *first->Allocate(100);
  const OwnedMemory there = *second->Allocate(100);
  const OwnedPinned pinned = *first->AllocatePinned(100);
  int local = 0;
  const auto locate = [](uint64_t address) { return Locate(testing::FakeCuda(), address); };
  EXPECT_EQ(locate(here.get()).kind, Place::Kind::kCuda);
  EXPECT_EQ(locate(here.get() + 99).ordinal, 0);
  EXPECT_EQ(locate(there.get()).ordinal, 1);
  EXPECT_EQ(locate(reinterpret_cast<uint64_t>(pinned.get())).kind, Place::Kind::kHost);
  EXPECT_EQ(locate(reinterpret_cast<uint64_t>(&local)).kind, Place::Kind::kHost);
}

TEST(Device, WorksWithoutKernelsAndSaysWhy) {
  testing::ResetFakeCuda(1);
  EXPECT_NE((*Device::Open(testing::FakeCuda(), 0, {}))->no_kernels().find("nvcc"),
            std::string::npos);
  testing::FailCuda("cuModuleLoadData", 209);  // no code for this GPU
  const auto old_gpu = *Device::Open(testing::FakeCuda(), 0, kImage);
  EXPECT_FALSE(old_gpu->has_kernels());
  EXPECT_NE(old_gpu->no_kernels().find("cuModuleLoadData"), std::string::npos);
  const auto known_gpu = *Device::Open(testing::FakeCuda(), 0, kImage);
  EXPECT_TRUE(known_gpu->has_kernels());
  EXPECT_EQ(known_gpu->no_kernels(), "");
}

TEST(EventPool, LendsEachEventToOneAndOutlivesItsOwner) {
  GpuWorld world(2);
  auto pool = std::make_shared<EventPool>(&world.device());
  EventPool::Loan first = *pool->Take();
  cuda::Event again = nullptr;
  {
    const EventPool::Loan second = *pool->Take();
    EXPECT_NE(first.get(), second.get());
    again = second.get();
  }
  EXPECT_EQ((*pool->Take()).get(), again);
  pool.reset();
  EXPECT_NE(first.get(), nullptr);
}

// This host has none: then the text says so.
TEST(CudaDriver, IsFoundOrMissed) {
  const auto driver = cuda::LoadDriver();
  if (driver.ok()) GTEST_SKIP() << "this host has a GPU";
  EXPECT_EQ(CodeOf(driver.status()), ErrorCode::kUnsupported);
  EXPECT_NE(MessageOf(driver.status()).find("CUDA driver"), std::string::npos);
}

}  // namespace
}  // namespace luwu::client
