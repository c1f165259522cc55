// The part of the CUDA driver's C interface that LuWu uses, as a table of functions: filled from
// libcuda.so.1 when a caller first names GPU memory, or by tests, whose functions act like a GPU
// that is slow and takes every liberty. So libluwu builds without the CUDA toolkit and starts on
// hosts without a driver. cuda_driver_check.cc compares the declarations with cuda.h where there is
// one.
//
// A table lives for ever once it is used. Its functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"

namespace luwu::client::cuda {

using Result = int32_t;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kNotReady = 600;

using Ordinal = int32_t;   // CUdevice
using Address = uint64_t;  // CUdeviceptr
using Context = struct ContextObject*;
using Stream = struct StreamObject*;  // a cudaStream_t, too; null: the context's default stream
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

inline constexpr uint32_t kStreamNonBlocking = 1;  // does not wait for the default stream
inline constexpr uint32_t kEventDisableTiming = 2;
inline constexpr uint32_t kHostAllocPortable = 1;  // pinned for all contexts
inline constexpr int32_t kAttributeMemoryType = 2;
inline constexpr int32_t kAttributeDeviceOrdinal = 9;
inline constexpr uint32_t kMemoryTypeDevice = 2;

struct Driver {
  Result (*Init)(unsigned flags);
  Result (*DriverGetVersion)(int* version);
  Result (*GetErrorName)(Result result, const char** name);
  Result (*DeviceGetCount)(int* count);
  Result (*DeviceGetName)(char* name, int capacity, Ordinal device);
  Result (*DevicePrimaryCtxRetain)(Context* context, Ordinal device);
  Result (*CtxPushCurrent)(Context context);
  Result (*CtxPopCurrent)(Context* context);
  Result (*PointerGetAttribute)(void* data, int attribute, Address pointer);
  Result (*StreamCreate)(Stream* stream, unsigned flags);
  Result (*StreamDestroy)(Stream stream);
  Result (*StreamSynchronize)(Stream stream);
  Result (*StreamWaitEvent)(Stream stream, Event event, unsigned flags);
  Result (*EventCreate)(Event* event, unsigned flags);
  Result (*EventDestroy)(Event event);
  Result (*EventRecord)(Event event, Stream stream);
  Result (*EventQuery)(Event event);
  Result (*MemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  Result (*MemFreeHost)(void* memory);
  Result (*MemAlloc)(Address* address, size_t bytes);
  Result (*MemFree)(Address address);
  Result (*MemcpyHtoDAsync)(Address target, const void* source, size_t bytes, Stream stream);
  Result (*MemcpyDtoHAsync)(void* target, Address source, size_t bytes, Stream stream);
  Result (*MemsetD8Async)(Address target, unsigned char value, size_t bytes, Stream stream);
  Result (*ModuleLoadData)(Module* module, const void* image);
  Result (*ModuleGetFunction)(Function* function, Module module, const char* name);
  // Grid x, y, z; block x, y, z; bytes of shared memory; stream; arguments; extra.
  Result (*LaunchKernel)(Function function, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, unsigned, Stream stream, void** arguments, void** extra);
};

// Calls `visit(symbol, member)` for every function of the table.
template <typename Visit>
void ForEachFunction(Driver& driver, const Visit& visit) {
  visit("cuInit", driver.Init);
  visit("cuDriverGetVersion", driver.DriverGetVersion);
  visit("cuGetErrorName", driver.GetErrorName);
  visit("cuDeviceGetCount", driver.DeviceGetCount);
  visit("cuDeviceGetName", driver.DeviceGetName);
  visit("cuDevicePrimaryCtxRetain", driver.DevicePrimaryCtxRetain);
  visit("cuCtxPushCurrent_v2", driver.CtxPushCurrent);
  visit("cuCtxPopCurrent_v2", driver.CtxPopCurrent);
  visit("cuPointerGetAttribute", driver.PointerGetAttribute);
  visit("cuStreamCreate", driver.StreamCreate);
  visit("cuStreamDestroy_v2", driver.StreamDestroy);
  visit("cuStreamSynchronize", driver.StreamSynchronize);
  visit("cuStreamWaitEvent", driver.StreamWaitEvent);
  visit("cuEventCreate", driver.EventCreate);
  visit("cuEventDestroy_v2", driver.EventDestroy);
  visit("cuEventRecord", driver.EventRecord);
  visit("cuEventQuery", driver.EventQuery);
  visit("cuMemHostAlloc", driver.MemHostAlloc);
  visit("cuMemFreeHost", driver.MemFreeHost);
  visit("cuMemAlloc_v2", driver.MemAlloc);
  visit("cuMemFree_v2", driver.MemFree);
  visit("cuMemcpyHtoDAsync_v2", driver.MemcpyHtoDAsync);
  visit("cuMemcpyDtoHAsync_v2", driver.MemcpyDtoHAsync);
  visit("cuMemsetD8Async", driver.MemsetD8Async);
  visit("cuModuleLoadData", driver.ModuleLoadData);
  visit("cuModuleGetFunction", driver.ModuleGetFunction);
  visit("cuLaunchKernel", driver.LaunchKernel);
}

// The host's driver, loaded and initialised at the first call. kUnsupported, saying what is
// missing, when there is none, it is too old, or it finds no GPU.
StatusOr<const Driver*> LoadDriver();

// kResourceExhausted for memory that is not there, else kState: errors of CUDA mean that the
// process's GPU context is broken or that the caller broke its rules.
Status ToStatus(const Driver& driver, Result result, const char* what);

}  // namespace luwu::client::cuda
