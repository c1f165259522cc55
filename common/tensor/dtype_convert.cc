#include "common/tensor/dtype_convert.h"

#include <cstring>

#include "common/tensor/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/tensor/dtype_convert.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "common/tensor/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::internal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using half::HWY_NAMESPACE::F32;
using half::HWY_NAMESPACE::V32;

const uint16_t* AsHalves(const std::byte* bytes) {
  return static_cast<const uint16_t*>(static_cast<const void*>(bytes));
}
uint16_t* AsHalves(std::byte* bytes) { return static_cast<uint16_t*>(static_cast<void*>(bytes)); }
uint16_t HalfAt(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}
void PutHalf(uint16_t bits, std::byte* to) { std::memcpy(to, &bits, sizeof bits); }

// Each format, a vector of fp32 at a time; `Scalar` does the tail.
struct Float32 {
  static constexpr uint64_t kBytes = 4;
  static V32 Load(const std::byte* from) {
    return hn::LoadU(F32(), static_cast<const float*>(static_cast<const void*>(from)));
  }
  static void Store(V32 values, std::byte* to) {
    hn::StoreU(values, F32(), static_cast<float*>(static_cast<void*>(to)));
  }
  static float ScalarLoad(const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void ScalarStore(float value, std::byte* to) { std::memcpy(to, &value, sizeof value); }
};

struct BFloat16 {
  static constexpr uint64_t kBytes = 2;
  static V32 Load(const std::byte* from) {
    return half::HWY_NAMESPACE::LoadBFloat16(AsHalves(from));
  }
  static void Store(V32 values, std::byte* to) {
    half::HWY_NAMESPACE::StoreBFloat16(values, AsHalves(to));
  }
  static float ScalarLoad(const std::byte* from) { return BFloat16ToFloat(HalfAt(from)); }
  static void ScalarStore(float value, std::byte* to) { PutHalf(FloatToBFloat16(value), to); }
};

struct Float16 {
  static constexpr uint64_t kBytes = 2;
  static V32 Load(const std::byte* from) {
    return half::HWY_NAMESPACE::LoadFloat16(AsHalves(from));
  }
  static void Store(V32 values, std::byte* to) {
    half::HWY_NAMESPACE::StoreFloat16(values, AsHalves(to));
  }
  static float ScalarLoad(const std::byte* from) { return Float16ToFloat(HalfAt(from)); }
  static void ScalarStore(float value, std::byte* to) { PutHalf(FloatToFloat16(value), to); }
};

template <typename From, typename To>
void Convert(const std::byte* source, std::byte* target, uint64_t count) {
  const uint64_t lanes = hn::Lanes(F32());
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    To::Store(From::Load(source + i * From::kBytes), target + i * To::kBytes);
  }
  for (; i < count; ++i) {
    To::ScalarStore(From::ScalarLoad(source + i * From::kBytes), target + i * To::kBytes);
  }
}

void Float32ToBFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  Convert<Float32, BFloat16>(source, target, count);
}
void Float32ToFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  Convert<Float32, Float16>(source, target, count);
}
void BFloat16ToFloat32(const std::byte* source, std::byte* target, uint64_t count) {
  Convert<BFloat16, Float32>(source, target, count);
}
void BFloat16ToFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  Convert<BFloat16, Float16>(source, target, count);
}
void Float16ToFloat32(const std::byte* source, std::byte* target, uint64_t count) {
  Convert<Float16, Float32>(source, target, count);
}
void Float16ToBFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  Convert<Float16, BFloat16>(source, target, count);
}

}  // namespace
}  // namespace luwu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luwu::internal {

HWY_EXPORT(Float32ToBFloat16);
HWY_EXPORT(Float32ToFloat16);
HWY_EXPORT(BFloat16ToFloat32);
HWY_EXPORT(BFloat16ToFloat16);
HWY_EXPORT(Float16ToFloat32);
HWY_EXPORT(Float16ToBFloat16);

void ConvertFloat32ToBFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(Float32ToBFloat16)(source, target, count);
}
void ConvertFloat32ToFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(Float32ToFloat16)(source, target, count);
}
void ConvertBFloat16ToFloat32(const std::byte* source, std::byte* target, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(BFloat16ToFloat32)(source, target, count);
}
void ConvertBFloat16ToFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(BFloat16ToFloat16)(source, target, count);
}
void ConvertFloat16ToFloat32(const std::byte* source, std::byte* target, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(Float16ToFloat32)(source, target, count);
}
void ConvertFloat16ToBFloat16(const std::byte* source, std::byte* target, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(Float16ToBFloat16)(source, target, count);
}

}  // namespace luwu::internal
#endif  // HWY_ONCE
