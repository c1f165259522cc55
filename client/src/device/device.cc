#include "client/src/device/device.h"

#include <map>
#include <memory>

#include "client/src/device/kernel_image.h"
#include "common/base/check.h"
#include "common/base/sync.h"

namespace luwu::client {
namespace {

constexpr int kNameBytes = 128;
constexpr std::array kDTypesOfKernels = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

}  // namespace

Place Locate(const cuda::Driver& driver, uint64_t address) {
  uint32_t type = 0;
  int32_t ordinal = 0;
  const bool known =
      driver.PointerGetAttribute(&type, cuda::kAttributeMemoryType, address) == cuda::kSuccess &&
      type == cuda::kMemoryTypeDevice &&
      driver.PointerGetAttribute(&ordinal, cuda::kAttributeDeviceOrdinal, address) ==
          cuda::kSuccess;
  if (!known) return {};
  return {Place::Kind::kCuda, ordinal};
}

StatusOr<std::unique_ptr<Device>> Device::Open(const cuda::Driver& driver, cuda::Ordinal ordinal,
                                               ConstByteSpan image) {
  std::unique_ptr<Device> device(new Device(driver, ordinal));
  std::array<char, kNameBytes> name = {};
  RETURN_IF_ERROR(
      device->Check(driver.DeviceGetName(name.data(), kNameBytes - 1, ordinal), "cuDeviceGetName"));
  device->name_ = name.data();
  RETURN_IF_ERROR(device->Check(driver.DevicePrimaryCtxRetain(&device->context_, ordinal),
                                "cuDevicePrimaryCtxRetain"));
  device->LoadKernels(image);
  return device;
}

// Copies work without kernels, so that a GPU that the build does not know is no error.
void Device::LoadKernels(ConstByteSpan image) {
  if (image.empty()) {
    no_kernels_ = "libluwu was built without nvcc";
    return;
  }
  const Scope scope(*this);
  Status status = scope.status();
  if (status.ok()) {
    status = Check(driver_.ModuleLoadData(&module_, image.data()), "cuModuleLoadData");
  }
  const auto find = [&](const char* kind, DType source, DType target, Functions* functions) {
    const std::string symbol =
        fmt::format("luwu_{}_{}_{}", kind, static_cast<int>(source), static_cast<int>(target));
    cuda::Function* const function =
        &(*functions)[static_cast<size_t>(source)][static_cast<size_t>(target)];
    if (status.ok()) {
      status = Check(driver_.ModuleGetFunction(function, module_, symbol.c_str()),
                     "cuModuleGetFunction");
    }
  };
  for (const DType source : kDTypesOfKernels) {
    for (const DType target : kDTypesOfKernels) {
      find("pack", source, target, &pack_);
      if (source != target) find("unpack", source, target, &unpack_);
    }
  }
  if (status.ok()) return;
  module_ = nullptr;
  no_kernels_ = MessageOf(status);
}

StatusOr<OwnedStream> Device::MakeStream() const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  cuda::Stream stream = nullptr;
  RETURN_IF_ERROR(Check(driver_.StreamCreate(&stream, cuda::kStreamNonBlocking), "cuStreamCreate"));
  return OwnedStream(this, stream, driver_.StreamDestroy);
}

StatusOr<OwnedEvent> Device::MakeEvent() const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  cuda::Event event = nullptr;
  RETURN_IF_ERROR(Check(driver_.EventCreate(&event, cuda::kEventDisableTiming), "cuEventCreate"));
  return OwnedEvent(this, event, driver_.EventDestroy);
}

StatusOr<OwnedMemory> Device::Allocate(uint64_t bytes) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  cuda::Address address = 0;
  RETURN_IF_ERROR(Check(driver_.MemAlloc(&address, bytes), "cuMemAlloc"));
  return OwnedMemory(this, address, driver_.MemFree);
}

StatusOr<OwnedPinned> Device::AllocatePinned(uint64_t bytes) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  void* memory = nullptr;
  RETURN_IF_ERROR(
      Check(driver_.MemHostAlloc(&memory, bytes, cuda::kHostAllocPortable), "cuMemHostAlloc"));
  return OwnedPinned(this, memory, driver_.MemFreeHost);
}

Status Device::Record(cuda::Event event, cuda::Stream stream) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  return Check(driver_.EventRecord(event, stream), "cuEventRecord");
}

Status Device::Wait(cuda::Stream stream, cuda::Event event) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  return Check(driver_.StreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

StatusOr<bool> Device::IsDone(cuda::Event event) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  const cuda::Result result = driver_.EventQuery(event);
  if (result == cuda::kNotReady) return false;
  RETURN_IF_ERROR(Check(result, "cuEventQuery"));
  return true;
}

void Device::Drain(cuda::Stream stream) const {
  const Scope scope(*this);
  // An error here is one of the context, after which nothing runs any more either.
  if (scope.status().ok()) driver_.StreamSynchronize(stream);
}

Status Device::CopyIn(cuda::Address target, ConstByteSpan pinned, cuda::Stream stream) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  return Check(driver_.MemcpyHtoDAsync(target, pinned.data(), pinned.size(), stream),
               "cuMemcpyHtoDAsync");
}

Status Device::CopyOut(ByteSpan pinned, cuda::Address source, cuda::Stream stream) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  return Check(driver_.MemcpyDtoHAsync(pinned.data(), source, pinned.size(), stream),
               "cuMemcpyDtoHAsync");
}

Status Device::Zero(cuda::Address target, uint64_t bytes, cuda::Stream stream) const {
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  return Check(driver_.MemsetD8Async(target, 0, bytes, stream), "cuMemsetD8Async");
}

Status Device::Launch(cuda::Function function, cuda::Stream stream, void** arguments) const {
  LUWU_CHECK(function != nullptr, "kernels are launched only where they are");
  const Scope scope(*this);
  RETURN_IF_ERROR(scope.status());
  return Check(driver_.LaunchKernel(function, kernels::kBlocks, 1, 1, kernels::kThreads, 1, 1, 0,
                                    stream, arguments, nullptr),
               "cuLaunchKernel");
}

Status Device::Pack(const KernelCall& call, float scale, cuda::Address partials,
                    cuda::Stream stream) const {
  KernelCall values = call;
  void* arguments[] = {&values.source, &values.target, &values.count, &scale, &partials};
  return Launch(
      pack_[static_cast<size_t>(call.source_dtype)][static_cast<size_t>(call.target_dtype)], stream,
      arguments);
}

Status Device::Unpack(const KernelCall& call, cuda::Stream stream) const {
  KernelCall values = call;
  void* arguments[] = {&values.source, &values.target, &values.count};
  return Launch(
      unpack_[static_cast<size_t>(call.source_dtype)][static_cast<size_t>(call.target_dtype)],
      stream, arguments);
}

StatusOr<const Device*> DeviceOf(const cuda::Driver& driver, cuda::Ordinal ordinal) {
  struct Opened {
    Mutex mutex;
    std::map<cuda::Ordinal, std::unique_ptr<Device>> devices LUWU_GUARDED_BY(mutex);
  };
  // Never destroyed: operations and sessions may end after static objects do.
  static Opened& opened = *std::make_unique<Opened>().release();
  MutexLock lock(opened.mutex);
  std::unique_ptr<Device>& device = opened.devices[ordinal];
  if (device == nullptr) {
    ASSIGN_OR_RETURN(device, Device::Open(driver, ordinal, kernels::KernelImage()));
  }
  return device.get();
}

}  // namespace luwu::client
