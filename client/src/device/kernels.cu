// The GPU kernels; kernel_math.h says what they compute, kernel_twins.h is the same on a CPU.
// A name is luwu_pack_S_T or luwu_unpack_S_T, with S and T the source's and target's luwu_dtype.
#include "client/src/device/kernel_math.h"

namespace luwu::client::kernels {
namespace {

__device__ uint64_t FirstElement() { return uint64_t{blockIdx.x} * kThreads + threadIdx.x; }

template <typename Source, typename Target>
__device__ void Pack(const Source* source, Target* target, uint64_t count, float scale,
                     Partial* partials) {
  __shared__ Partial sums[kThreads];
  Partial mine = {0.0, 0};
  for (uint64_t i = FirstElement(); i < count; i += uint64_t{kBlocks} * kThreads) {
    PackOne(source[i], scale, &target[i], &mine);
  }
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (uint32_t stride = kThreads / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) {
      sums[threadIdx.x].square_sum += sums[threadIdx.x + stride].square_sum;
      sums[threadIdx.x].non_finite += sums[threadIdx.x + stride].non_finite;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    partials[blockIdx.x].square_sum += sums[0].square_sum;
    partials[blockIdx.x].non_finite += sums[0].non_finite;
  }
}

template <typename Source, typename Target>
__device__ void Unpack(const Source* source, Target* target, uint64_t count) {
  for (uint64_t i = FirstElement(); i < count; i += uint64_t{kBlocks} * kThreads) {
    FromFloat(ToFloat(source[i]), &target[i]);
  }
}

}  // namespace

#define LUWU_PACK(s, t, Source, Target)                                                      \
  extern "C" __global__ void __launch_bounds__(kThreads)                                     \
      luwu_pack_##s##_##t(const Source* source, Target* target, uint64_t count, float scale, \
                          Partial* partials) {                                               \
    Pack(source, target, count, scale, partials);                                            \
  }
#define LUWU_UNPACK(s, t, Source, Target)                                            \
  extern "C" __global__ void __launch_bounds__(kThreads)                             \
      luwu_unpack_##s##_##t(const Source* source, Target* target, uint64_t count) { \
    Unpack(source, target, count);                                                   \
  }

LUWU_PACK(1, 1, float, float)
LUWU_PACK(1, 2, float, BFloat16)
LUWU_PACK(1, 3, float, Float16)
LUWU_PACK(2, 1, BFloat16, float)
LUWU_PACK(2, 2, BFloat16, BFloat16)
LUWU_PACK(2, 3, BFloat16, Float16)
LUWU_PACK(3, 1, Float16, float)
LUWU_PACK(3, 2, Float16, BFloat16)
LUWU_PACK(3, 3, Float16, Float16)
LUWU_UNPACK(1, 2, float, BFloat16)
LUWU_UNPACK(1, 3, float, Float16)
LUWU_UNPACK(2, 1, BFloat16, float)
LUWU_UNPACK(2, 3, BFloat16, Float16)
LUWU_UNPACK(3, 1, Float16, float)
LUWU_UNPACK(3, 2, Float16, BFloat16)

}  // namespace luwu::client::kernels
