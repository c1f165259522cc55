// One GPU: its primary context (the one that the CUDA runtime, and so PyTorch, uses), its memory,
// streams, events and kernels. Every method makes the context current for as long as it runs and
// leaves the thread as it found it; any thread. Nothing here waits for a stream except Drain, which
// is for streams of our own.
//
// Errors of CUDA become statuses that name the call (cuda_driver.h). A Device lives as long as what
// was made with it; those of DeviceOf live for ever.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "client/src/device/cuda_driver.h"
#include "client/src/device/kernel_math.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/tensor/dtype.h"

namespace luwu::client {

class Device;

// Something that a Device made and that is given back at the end of its life.
template <typename Handle>
class Owned {
 public:
  using Free = cuda::Result (*)(Handle);
  Owned() = default;
  Owned(const Device* device, Handle handle, Free free)
      : device_(device), handle_(handle), free_(free) {}
  Owned(Owned&& other) noexcept { *this = std::move(other); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~Owned();
  Handle get() const { return handle_; }

 private:
  const Device* device_ = nullptr;
  Handle handle_ = {};
  Free free_ = nullptr;
};
using OwnedStream = Owned<cuda::Stream>;
using OwnedEvent = Owned<cuda::Event>;
using OwnedMemory = Owned<cuda::Address>;  // of the GPU
using OwnedPinned = Owned<void*>;          // of the host, which copy engines can reach

// Where a pointer leads.
struct Place {
  enum class Kind : uint8_t { kHost, kCuda } kind = Kind::kHost;
  cuda::Ordinal ordinal = 0;  // of kCuda
};
// Memory that CUDA does not know is the host's, and so is pinned memory. The pointer is not
// followed.
Place Locate(const cuda::Driver& driver, uint64_t address);

class Device {
 public:
  // `image`: the compiled kernels; empty: none.
  static StatusOr<std::unique_ptr<Device>> Open(const cuda::Driver& driver, cuda::Ordinal ordinal,
                                                ConstByteSpan image);

  const cuda::Driver& driver() const { return driver_; }
  cuda::Ordinal ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  bool has_kernels() const { return module_ != nullptr; }
  // Why not; empty when it has them.
  const std::string& no_kernels() const { return no_kernels_; }

  StatusOr<OwnedStream> MakeStream() const;
  StatusOr<OwnedEvent> MakeEvent() const;
  StatusOr<OwnedMemory> Allocate(uint64_t bytes) const;
  StatusOr<OwnedPinned> AllocatePinned(uint64_t bytes) const;

  Status Record(cuda::Event event, cuda::Stream stream) const;
  // What is put onto `stream` from now on runs after what `event` has recorded.
  Status Wait(cuda::Stream stream, cuda::Event event) const;
  StatusOr<bool> IsDone(cuda::Event event) const;
  // Returns when all work of `stream` has ended, or the context has.
  void Drain(cuda::Stream stream) const;

  Status CopyIn(cuda::Address target, ConstByteSpan pinned, cuda::Stream stream) const;
  Status CopyOut(ByteSpan pinned, cuda::Address source, cuda::Stream stream) const;
  Status Zero(cuda::Address target, uint64_t bytes, cuda::Stream stream) const;

  // The kernels; has_kernels() is CHECKed.
  struct KernelCall {
    DType source_dtype = DType::kUnspecified;
    cuda::Address source = 0;
    DType target_dtype = DType::kUnspecified;
    cuda::Address target = 0;
    uint64_t count = 0;
  };
  Status Pack(const KernelCall& call, float scale, cuda::Address partials,
              cuda::Stream stream) const;
  Status Unpack(const KernelCall& call, cuda::Stream stream) const;

 private:
  template <typename Handle>
  friend class Owned;
  class Scope;
  static constexpr size_t kDTypes = 4;
  using Functions = std::array<std::array<cuda::Function, kDTypes>, kDTypes>;

  Device(const cuda::Driver& driver, cuda::Ordinal ordinal) : driver_(driver), ordinal_(ordinal) {}
  void LoadKernels(ConstByteSpan image);
  Status Launch(cuda::Function function, cuda::Stream stream, void** arguments) const;
  Status Check(cuda::Result result, const char* what) const {
    return cuda::ToStatus(driver_, result, what);
  }

  const cuda::Driver& driver_;
  const cuda::Ordinal ordinal_;
  std::string name_;
  std::string no_kernels_;
  cuda::Context context_ = nullptr;  // kept for ever: others in the process use it
  cuda::Module module_ = nullptr;
  Functions pack_ = {};
  Functions unpack_ = {};
};

// The device with this number in this process, opened at the first call.
StatusOr<const Device*> DeviceOf(const cuda::Driver& driver, cuda::Ordinal ordinal);

// The context of a device, current for a scope.
class Device::Scope {
 public:
  explicit Scope(const Device& device)
      : device_(device), result_(device.driver_.CtxPushCurrent(device.context_)) {}
  ~Scope() {
    cuda::Context context = nullptr;
    if (result_ == cuda::kSuccess) device_.driver_.CtxPopCurrent(&context);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  Status status() const { return device_.Check(result_, "cuCtxPushCurrent"); }

 private:
  const Device& device_;
  const cuda::Result result_;
};

template <typename Handle>
Owned<Handle>::~Owned() {
  if (device_ == nullptr) return;
  // In a process that ends, the driver may have gone first: there is nothing left to give back.
  const Device::Scope scope(*device_);
  if (scope.status().ok()) free_(handle_);
}

}  // namespace luwu::client
