// A GPU for programs that use libluwu as applications do: the driver's functions from libcuda.so.1
// (NVIDIA's, or the fake one of tests/fakes first on LD_LIBRARY_PATH), GPU and pinned memory, a
// stream. Every failure throws std::runtime_error.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "client/src/device/cuda_driver.h"

namespace luwu::testing {

class Gpu {
 public:
  // Why there is none; empty when there is one.
  static std::string Missing() {
    static const std::string why = [] {
      try {
        Gpu gpu;
        return std::string();
      } catch (const std::runtime_error& error) {
        return std::string(error.what());
      }
    }();
    return why;
  }

  Gpu() {
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error("no libcuda.so.1");
    client::cuda::ForEachFunction(driver_, [&](const char* symbol, auto& function) {
      using Type = std::remove_reference_t<decltype(function)>;
      function = reinterpret_cast<Type>(Symbol(symbol));
      if (function == nullptr) throw std::runtime_error(std::string("no ") + symbol);
    });
    Check(driver_.Init(0), "cuInit");
    Check(driver_.DevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    Check(driver_.CtxPushCurrent(context_), "cuCtxPushCurrent");  // of this thread, from now on
  }

  const client::cuda::Driver& driver() const { return driver_; }
  void* Symbol(const char* name) const { return ::dlsym(library_, name); }
  // Of another thread.
  void MakeCurrent() { Check(driver_.CtxPushCurrent(context_), "cuCtxPushCurrent"); }

  void Check(client::cuda::Result result, const char* what) const {
    if (result == 0) return;
    throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(result));
  }

  client::cuda::Stream MakeStream() const {
    client::cuda::Stream stream = nullptr;
    Check(driver_.StreamCreate(&stream, client::cuda::kStreamNonBlocking), "cuStreamCreate");
    return stream;
  }
  client::cuda::Event MakeEvent() const {
    client::cuda::Event event = nullptr;
    Check(driver_.EventCreate(&event, client::cuda::kEventDisableTiming), "cuEventCreate");
    return event;
  }
  // Waits until all that is on the stream now has run, by asking.
  void Finish(client::cuda::Stream stream) const {
    const client::cuda::Event event = MakeEvent();
    Check(driver_.EventRecord(event, stream), "cuEventRecord");
    while (true) {
      const client::cuda::Result result = driver_.EventQuery(event);
      if (result != client::cuda::kNotReady) {
        Check(result, "cuEventQuery");
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    Check(driver_.EventDestroy(event), "cuEventDestroy");
  }

 private:
  void* library_ = nullptr;  // stays
  client::cuda::Driver driver_ = {};
  client::cuda::Context context_ = nullptr;
};

class GpuMemory {
 public:
  GpuMemory(const Gpu& gpu, uint64_t bytes) : gpu_(&gpu) {
    gpu.Check(gpu.driver().MemAlloc(&address_, bytes), "cuMemAlloc");
  }
  GpuMemory(GpuMemory&& other) noexcept
      : gpu_(other.gpu_), address_(std::exchange(other.address_, 0)) {}
  ~GpuMemory() {
    if (address_ != 0) gpu_->driver().MemFree(address_);
  }
  client::cuda::Address address() const { return address_; }
  void* pointer() const { return reinterpret_cast<void*>(address_); }

 private:
  const Gpu* gpu_;
  client::cuda::Address address_ = 0;
};

class PinnedMemory {
 public:
  PinnedMemory(const Gpu& gpu, uint64_t bytes) : gpu_(&gpu) {
    gpu.Check(gpu.driver().MemHostAlloc(&memory_, bytes, client::cuda::kHostAllocPortable),
              "cuMemHostAlloc");
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() { gpu_->driver().MemFreeHost(memory_); }
  void* data() const { return memory_; }
  float* floats() const { return static_cast<float*>(memory_); }

 private:
  const Gpu* gpu_;
  void* memory_ = nullptr;
};

}  // namespace luwu::testing
