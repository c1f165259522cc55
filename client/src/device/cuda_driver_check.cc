// Compiled where the CUDA toolkit is: the declarations of cuda_driver.h call the functions of
// cuda.h with arguments of the same number, sizes and kinds.
#include <cuda.h>

#include <type_traits>

#include "client/src/device/cuda_driver.h"

namespace luwu::client::cuda {
namespace {

template <typename A, typename B>
constexpr bool kSame = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename A, typename B>
struct SameCall : std::false_type {};
template <typename R1, typename... A, typename R2, typename... B>
struct SameCall<R1 (*)(A...), R2 (*)(B...)> {
  static constexpr bool Value() {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return kSame<R1, R2> && (kSame<A, B> && ...);
    } else {
      return false;
    }
  }
};

#define LUWU_SAME(member, function) \
  static_assert(SameCall<decltype(Driver::member), decltype(&::function)>::Value(), #function)
LUWU_SAME(Init, cuInit);
LUWU_SAME(DriverGetVersion, cuDriverGetVersion);
LUWU_SAME(GetErrorName, cuGetErrorName);
LUWU_SAME(DeviceGetCount, cuDeviceGetCount);
LUWU_SAME(DeviceGetName, cuDeviceGetName);
LUWU_SAME(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
LUWU_SAME(CtxPushCurrent, cuCtxPushCurrent);
LUWU_SAME(CtxPopCurrent, cuCtxPopCurrent);
LUWU_SAME(PointerGetAttribute, cuPointerGetAttribute);
LUWU_SAME(StreamCreate, cuStreamCreate);
LUWU_SAME(StreamDestroy, cuStreamDestroy);
LUWU_SAME(StreamSynchronize, cuStreamSynchronize);
LUWU_SAME(StreamWaitEvent, cuStreamWaitEvent);
LUWU_SAME(EventCreate, cuEventCreate);
LUWU_SAME(EventDestroy, cuEventDestroy);
LUWU_SAME(EventRecord, cuEventRecord);
LUWU_SAME(EventQuery, cuEventQuery);
LUWU_SAME(MemHostAlloc, cuMemHostAlloc);
LUWU_SAME(MemFreeHost, cuMemFreeHost);
LUWU_SAME(MemAlloc, cuMemAlloc);
LUWU_SAME(MemFree, cuMemFree);
LUWU_SAME(MemcpyHtoDAsync, cuMemcpyHtoDAsync);
LUWU_SAME(MemcpyDtoHAsync, cuMemcpyDtoHAsync);
LUWU_SAME(MemsetD8Async, cuMemsetD8Async);
LUWU_SAME(ModuleLoadData, cuModuleLoadData);
LUWU_SAME(ModuleGetFunction, cuModuleGetFunction);
LUWU_SAME(LaunchKernel, cuLaunchKernel);
#undef LUWU_SAME

static_assert(kSuccess == CUDA_SUCCESS && kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);

}  // namespace
}  // namespace luwu::client::cuda
