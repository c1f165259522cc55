// The fake GPU as libcuda.so.1: found first on LD_LIBRARY_PATH, it is the driver that libluwu
// loads, so that programs run the whole way through GPU memory on hosts without one.
#include "tests/fakes/fake_cuda.h"

#define LUWU_EXPORT extern "C" __attribute__((visibility("default")))
#define LUWU_FUNCTION(symbol, member, parameters, arguments) \
  LUWU_EXPORT luwu::client::cuda::Result symbol parameters { \
    return luwu::testing::FakeCuda().member arguments;       \
  }

namespace {
using luwu::client::cuda::Address;
using luwu::client::cuda::Context;
using luwu::client::cuda::Event;
using luwu::client::cuda::Function;
using luwu::client::cuda::Module;
using luwu::client::cuda::Result;
using luwu::client::cuda::Stream;
}  // namespace

LUWU_FUNCTION(cuInit, Init, (unsigned flags), (flags))
LUWU_FUNCTION(cuDriverGetVersion, DriverGetVersion, (int* version), (version))
LUWU_FUNCTION(cuGetErrorName, GetErrorName, (Result result, const char** name), (result, name))
LUWU_FUNCTION(cuDeviceGetCount, DeviceGetCount, (int* count), (count))
LUWU_FUNCTION(cuDeviceGetName, DeviceGetName, (char* name, int capacity, int device),
              (name, capacity, device))
LUWU_FUNCTION(cuDevicePrimaryCtxRetain, DevicePrimaryCtxRetain, (Context * context, int device),
              (context, device))
LUWU_FUNCTION(cuCtxPushCurrent_v2, CtxPushCurrent, (Context context), (context))
LUWU_FUNCTION(cuCtxPopCurrent_v2, CtxPopCurrent, (Context * context), (context))
LUWU_FUNCTION(cuPointerGetAttribute, PointerGetAttribute,
              (void* data, int attribute, Address pointer), (data, attribute, pointer))
LUWU_FUNCTION(cuStreamCreate, StreamCreate, (Stream * stream, unsigned flags), (stream, flags))
LUWU_FUNCTION(cuStreamDestroy_v2, StreamDestroy, (Stream stream), (stream))
LUWU_FUNCTION(cuStreamSynchronize, StreamSynchronize, (Stream stream), (stream))
LUWU_FUNCTION(cuStreamWaitEvent, StreamWaitEvent, (Stream stream, Event event, unsigned flags),
              (stream, event, flags))
LUWU_FUNCTION(cuEventCreate, EventCreate, (Event * event, unsigned flags), (event, flags))
LUWU_FUNCTION(cuEventDestroy_v2, EventDestroy, (Event event), (event))
LUWU_FUNCTION(cuEventRecord, EventRecord, (Event event, Stream stream), (event, stream))
LUWU_FUNCTION(cuEventQuery, EventQuery, (Event event), (event))
LUWU_FUNCTION(cuMemHostAlloc, MemHostAlloc, (void** memory, size_t bytes, unsigned flags),
              (memory, bytes, flags))
LUWU_FUNCTION(cuMemFreeHost, MemFreeHost, (void* memory), (memory))
LUWU_FUNCTION(cuMemAlloc_v2, MemAlloc, (Address * address, size_t bytes), (address, bytes))
LUWU_FUNCTION(cuMemFree_v2, MemFree, (Address address), (address))
LUWU_FUNCTION(cuMemcpyHtoDAsync_v2, MemcpyHtoDAsync,
              (Address target, const void* source, size_t bytes, Stream stream),
              (target, source, bytes, stream))
LUWU_FUNCTION(cuMemcpyDtoHAsync_v2, MemcpyDtoHAsync,
              (void* target, Address source, size_t bytes, Stream stream),
              (target, source, bytes, stream))
LUWU_FUNCTION(cuMemsetD8Async, MemsetD8Async,
              (Address target, unsigned char value, size_t bytes, Stream stream),
              (target, value, bytes, stream))
LUWU_FUNCTION(cuModuleLoadData, ModuleLoadData, (Module * module, const void* image),
              (module, image))
LUWU_FUNCTION(cuModuleGetFunction, ModuleGetFunction,
              (Function * function, Module module, const char* name), (function, module, name))
LUWU_FUNCTION(cuLaunchKernel, LaunchKernel,
              (Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
               unsigned bz, unsigned shared, Stream stream, void** arguments, void** extra),
              (function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra))

// For tests that want to know more; NVIDIA's library has no such functions.
LUWU_EXPORT uint64_t luwu_fake_cuda_violations() {
  return luwu::testing::FakeCudaViolations().size();
}
LUWU_EXPORT const char* luwu_fake_cuda_first_violation() {
  static std::string first;
  const auto all = luwu::testing::FakeCudaViolations();
  first = all.empty() ? "" : all.front();
  return first.c_str();
}
LUWU_EXPORT void luwu_fake_cuda_hold(Stream stream, int hold) {
  if (hold != 0) {
    luwu::testing::HoldStream(stream);
  } else {
    luwu::testing::ReleaseStream(stream);
  }
}
