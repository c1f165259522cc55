// The conversions of common/tensor/half-inl.h, among the kernels. Included once per SIMD target.
#include <hwy/highway.h>

#include "common/tensor/half-inl.h"

#if defined(LUWU_OPTIM_KERNELS_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUWU_OPTIM_KERNELS_HALF_INL_H_
#undef LUWU_OPTIM_KERNELS_HALF_INL_H_
#else
#define LUWU_OPTIM_KERNELS_HALF_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace luwu::optim::HWY_NAMESPACE {
using half::HWY_NAMESPACE::F32;
using half::HWY_NAMESPACE::I32;
using half::HWY_NAMESPACE::LoadBFloat16;
using half::HWY_NAMESPACE::LoadFloat16;
using half::HWY_NAMESPACE::StoreBFloat16;
using half::HWY_NAMESPACE::StoreFloat16;
using half::HWY_NAMESPACE::StoreLow16;
using half::HWY_NAMESPACE::U16;
using half::HWY_NAMESPACE::U32;
using half::HWY_NAMESPACE::V32;
}  // namespace luwu::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
