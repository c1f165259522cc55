// What the stager's tests share: a fake GPU, a layer cut into shards, memory of the caller on the
// GPU in several dtypes, and a stream of the caller's.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/src/device/stager.h"
#include "tests/fakes/fake_cuda.h"

namespace luwu::client {

inline constexpr std::byte kImage[] = {std::byte{1}};  // the fake takes any for its kernels

class GpuWorld {
 public:
  explicit GpuWorld(uint64_t seed, bool with_kernels = true) : random_(seed) {
    testing::ResetFakeCuda(seed);
    device_ = *Device::Open(testing::FakeCuda(), 0,
                            with_kernels ? ConstByteSpan(kImage) : ConstByteSpan());
    stream_ = *device_->MakeStream();
    testing::MarkAsCallers(stream_.get());
    ready_ = *device_->MakeEvent();
    arrived_ = *device_->MakeEvent();
  }
  ~GpuWorld() {
    testing::SettleFakeCuda();
    memory_.clear();
    stager_.reset();
    stream_ = {};
    ready_ = {};
    arrived_ = {};
    EXPECT_EQ(testing::FakeCudaViolations(), std::vector<std::string>());
    EXPECT_EQ(testing::FakeCudaPinnedBytes(), 0u);
    EXPECT_EQ(testing::FakeCudaGpuBytes(), 0u);
  }

  void MakeStager(StagerOptions options) { stager_ = *Stager::Make(*device_, options); }

  // A layer of `elements` in shards, with memory for all of it but some gaps.
  void MakeLayer(uint64_t elements, uint64_t shard_elements, bool gaps) {
    shards_.clear();
    segments_.clear();
    memory_.clear();
    for (uint64_t at = 0; at < elements; at += shard_elements) {
      shards_.push_back({at, std::min(shard_elements, elements - at)});
    }
    for (uint64_t at = 0; at < elements;) {
      const uint64_t count =
          std::min<uint64_t>(1 + random_() % (2 * shard_elements), elements - at);
      const DType dtype = static_cast<DType>(1 + random_() % 3);
      memory_.push_back(*device_->Allocate(count * DTypeBytes(dtype)));
      segments_.push_back({dtype, reinterpret_cast<std::byte*>(memory_.back().get()), at, count});
      at += count + (gaps ? random_() % shard_elements : 0);
    }
  }

  StagedLayer Layer(DType wire) const {
    StagedLayer layer;
    layer.shards = shards_;
    layer.segments = segments_;
    layer.wire = wire;
    layer.ready = ready_.get();
    layer.deadline = DeadlineAfter(60'000);
    return layer;
  }

  Device& device() { return *device_; }
  Stager& stager() { return *stager_; }
  cuda::Stream stream() const { return stream_.get(); }
  cuda::Event ready() const { return ready_.get(); }
  cuda::Event arrived() const { return arrived_.get(); }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<ShardRange>& shards() const { return shards_; }
  std::mt19937& random() { return random_; }

  std::vector<uint8_t> Noise(uint64_t bytes) {
    std::vector<uint8_t> noise(bytes);
    for (uint8_t& each : noise) each = static_cast<uint8_t>(random_());
    return noise;
  }
  static uint64_t BytesOf(const Segment& segment) {
    return segment.count * DTypeBytes(segment.dtype);
  }
  static cuda::Address AddressOf(const Segment& segment) {
    return reinterpret_cast<cuda::Address>(segment.data);
  }

 private:
  std::mt19937 random_;
  std::unique_ptr<Device> device_;
  OwnedStream stream_;
  OwnedEvent ready_;
  OwnedEvent arrived_;
  std::unique_ptr<Stager> stager_;
  std::vector<ShardRange> shards_;
  std::vector<Segment> segments_;
  std::vector<OwnedMemory> memory_;
};

// The value of an element, exact in all dtypes.
inline float ElementValue(uint64_t seed, uint64_t element) {
  return static_cast<float>((element * 37 + seed * 101) % 255) / 16.0f - 8.0f;
}
inline std::vector<std::byte> Values(uint64_t seed, const Segment& range, DType dtype) {
  std::vector<float> values(range.count);
  for (uint64_t i = 0; i < range.count; ++i) values[i] = ElementValue(seed, range.offset + i);
  std::vector<std::byte> bytes(range.count * DTypeBytes(dtype));
  ConvertElements(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()), dtype,
                  bytes.data(), range.count);
  return bytes;
}

}  // namespace luwu::client
