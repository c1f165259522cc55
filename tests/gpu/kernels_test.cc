// Every kernel against its twin on the CPU, bit for bit, on a GPU where there is one. Over the fake
// driver, whose kernels are the twins, it tests how they are called.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "client/src/device/device.h"
#include "client/src/device/kernel_image.h"
#include "client/src/device/kernel_twins.h"

namespace luwu::client {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr uint64_t kCounts[] = {1, 255, 16'384, 16'385, 200'003};
constexpr uint64_t kPartialBytes = kernels::kBlocks * sizeof(kernels::Partial);

class Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto driver = cuda::LoadDriver();
    if (!driver.ok()) GTEST_SKIP() << "no GPU test: " << MessageOf(driver.status());
    if (kernels::KernelImage().empty()) GTEST_SKIP() << "no GPU test: built without nvcc";
    device_ = std::move(*Device::Open(**driver, 0, kernels::KernelImage()));
    ASSERT_TRUE(device_->has_kernels()) << device_->no_kernels();
    stream_ = *device_->MakeStream();
  }

  // Through pinned memory, and done when it returns.
  OwnedMemory Upload(const std::vector<std::byte>& bytes) {
    OwnedMemory memory = *device_->Allocate(bytes.size());
    const OwnedPinned pinned = *device_->AllocatePinned(bytes.size());
    std::memcpy(pinned.get(), bytes.data(), bytes.size());
    EXPECT_TRUE(device_
                    ->CopyIn(memory.get(),
                             {static_cast<const std::byte*>(pinned.get()), bytes.size()},
                             stream_.get())
                    .ok());
    device_->Drain(stream_.get());
    return memory;
  }
  std::vector<std::byte> Download(const OwnedMemory& memory, uint64_t bytes) {
    const OwnedPinned pinned = *device_->AllocatePinned(bytes);
    EXPECT_TRUE(
        device_
            ->CopyOut({static_cast<std::byte*>(pinned.get()), bytes}, memory.get(), stream_.get())
            .ok());
    device_->Drain(stream_.get());
    const auto* const begin = static_cast<const std::byte*>(pinned.get());
    return {begin, begin + bytes};
  }

  std::unique_ptr<Device> device_;
  OwnedStream stream_;
};

// Bits of all kinds: a third of the values is random, the others are ordinary ones and specials.
std::vector<std::byte> Source(DType dtype, uint64_t count, std::mt19937& random) {
  std::vector<float> floats(count);
  constexpr uint32_t kSpecials[] = {0x7f800000, 0xff800000, 0x7fc00001, 0x7f800001,
                                    0x80000000, 0x00000001, 0x33000000, 0x33000001,
                                    0x387fe000, 0x477fefff, 0x477ff000, 0x7f7fffff};
  for (float& value : floats) {
    uint32_t bits = static_cast<uint32_t>(random());
    if (random() % 3 != 0) bits = (bits & 0x807fffffu) | ((110u + random() % 24) << 23);
    if (random() % 64 == 0) bits = kSpecials[random() % std::size(kSpecials)];
    std::memcpy(&value, &bits, sizeof bits);
  }
  std::vector<std::byte> bytes(count * DTypeBytes(dtype));
  ConvertElements(DType::kFloat32, reinterpret_cast<const std::byte*>(floats.data()), dtype,
                  bytes.data(), count);
  return bytes;
}

TEST_F(Kernels, PackAsTheirTwins) {
  std::mt19937 random(1);
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (const uint64_t count : kCounts) {
        for (const float scale : {1.0f, 0.5f, 3.1415926f, 1e-30f}) {
          const std::vector<std::byte> source = Source(from, count, random);
          std::vector<std::byte> expected(count * DTypeBytes(to));
          std::vector<kernels::Partial> partials(kernels::kBlocks);
          const OwnedMemory gpu_source = Upload(source);
          const OwnedMemory gpu_target = *device_->Allocate(expected.size());
          const OwnedMemory gpu_partials = *device_->Allocate(kPartialBytes);
          ASSERT_TRUE(device_->Zero(gpu_partials.get(), kPartialBytes, stream_.get()).ok());
          for (int launch = 0; launch < 2; ++launch) {  // they add up
            kernels::PackTwin({from, source.data(), to, expected.data(), count}, scale,
                              partials.data());
            ASSERT_TRUE(device_
                            ->Pack({from, gpu_source.get(), to, gpu_target.get(), count}, scale,
                                   gpu_partials.get(), stream_.get())
                            .ok());
          }
          const auto stock = Download(gpu_partials, kPartialBytes);
          ASSERT_TRUE(Download(gpu_target, expected.size()) == expected)
              << DTypeName(from) << " to " << DTypeName(to) << ", " << count << " x " << scale;
          ASSERT_EQ(std::memcmp(stock.data(), partials.data(), kPartialBytes), 0)
              << DTypeName(from) << " to " << DTypeName(to) << ", " << count << " x " << scale;
        }
      }
    }
  }
}

TEST_F(Kernels, UnpackAsTheirTwins) {
  std::mt19937 random(2);
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      if (from == to) continue;
      for (const uint64_t count : kCounts) {
        const std::vector<std::byte> source = Source(from, count, random);
        std::vector<std::byte> expected(count * DTypeBytes(to));
        kernels::UnpackTwin({from, source.data(), to, expected.data(), count});
        const OwnedMemory gpu_source = Upload(source);
        const OwnedMemory gpu_target = *device_->Allocate(expected.size());
        ASSERT_TRUE(
            device_->Unpack({from, gpu_source.get(), to, gpu_target.get(), count}, stream_.get())
                .ok());
        ASSERT_TRUE(Download(gpu_target, expected.size()) == expected)
            << DTypeName(from) << " to " << DTypeName(to) << ", " << count;
      }
    }
  }
}

}  // namespace
}  // namespace luwu::client
