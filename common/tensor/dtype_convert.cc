#include "common/tensor/dtype_convert.h"

#include <bit>
#include <cstring>

#include "common/tensor/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/tensor/dtype_convert.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luwu::internal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// All lanes hold one element as 32-bit words. Integer arithmetic throughout, because the 16-bit
// conversions of the instruction sets differ in rounding, NaN payloads and denormals.
using Words = hn::ScalableTag<uint32_t>;
using Floats = hn::ScalableTag<float>;
using Halves = hn::Rebind<uint16_t, Words>;
using Vec = hn::Vec<Words>;

const uint16_t* As16(const std::byte* bytes) {
  return static_cast<const uint16_t*>(static_cast<const void*>(bytes));
}
const uint32_t* As32(const std::byte* bytes) {
  return static_cast<const uint32_t*>(static_cast<const void*>(bytes));
}
Vec Load16(const std::byte* from) {
  return hn::PromoteTo(Words(), hn::LoadU(Halves(), As16(from)));
}
void Store16(Vec words, std::byte* to) {
  const hn::Rebind<int32_t, Words> integers;
  auto* halves = static_cast<uint16_t*>(static_cast<void*>(to));
  hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(integers, words)), Halves(), halves);
}
Vec Word(uint32_t value) { return hn::Set(Words(), value); }
// Where a > b; both below 2^31, so that the signed comparison, which every CPU has, serves.
hn::Mask<Words> Above(Vec a, int32_t b) {
  const hn::RebindToSigned<Words> integers;
  return hn::RebindMask(Words(), hn::Gt(hn::BitCast(integers, a), hn::Set(integers, b)));
}

// Each format: how to load and store lanes, and to and from the bits of a float. `Scalar` does the
// tail.
struct Float32 {
  static constexpr uint64_t kBytes = 4;
  static Vec Load(const std::byte* from) { return hn::LoadU(Words(), As32(from)); }
  static Vec Widen(Vec words) { return words; }
  static void Store(Vec words, std::byte* to) {
    hn::StoreU(words, Words(), static_cast<uint32_t*>(static_cast<void*>(to)));
  }
  static Vec Narrow(Vec words) { return words; }
  static float ScalarLoad(const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void ScalarStore(float value, std::byte* to) { std::memcpy(to, &value, sizeof value); }
};

struct BFloat16 {
  static constexpr uint64_t kBytes = 2;
  static Vec Load(const std::byte* from) { return Load16(from); }
  static Vec Widen(Vec words) { return hn::ShiftLeft<16>(words); }
  static void Store(Vec words, std::byte* to) { Store16(words, to); }
  static Vec Narrow(Vec words) {
    const Vec magnitude = hn::And(words, Word(0x7fffffff));
    const Vec odd = hn::And(hn::ShiftRight<16>(words), Word(1));
    const Vec rounded = hn::ShiftRight<16>(hn::Add(words, hn::Add(odd, Word(0x7fff))));
    const Vec quiet = hn::Or(hn::ShiftRight<16>(words), Word(0x40));
    return hn::IfThenElse(Above(magnitude, 0x7f800000), quiet, rounded);
  }
  static float ScalarLoad(const std::byte* from) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return BFloat16ToFloat(bits);
  }
  static void ScalarStore(float value, std::byte* to) {
    const uint16_t bits = FloatToBFloat16(value);
    std::memcpy(to, &bits, sizeof bits);
  }
};

struct Float16 {
  static constexpr uint64_t kBytes = 2;
  static Vec Load(const std::byte* from) { return Load16(from); }
  static Vec Widen(Vec half) {
    const Vec sign = hn::ShiftLeft<16>(hn::And(half, Word(0x8000)));
    const Vec magnitude = hn::And(half, Word(0x7fff));
    const Vec normal = hn::Add(hn::ShiftLeft<13>(magnitude), Word(112u << 23));
    // Infinity and NaN: the largest exponent; NaN also gets the quiet bit.
    const Vec special = hn::Or(hn::ShiftLeft<13>(magnitude), Word(0x7f800000));
    const Vec quiet =
        hn::IfThenElse(Above(magnitude, 0x7c00), hn::Or(special, Word(0x400000)), special);
    // Denormal: magnitude * 2^-24, as the exact difference of two normal floats.
    const Vec shifted = hn::Add(hn::ShiftLeft<13>(magnitude), Word(113u << 23));
    const Vec denormal = hn::BitCast(
        Words(), hn::Sub(hn::BitCast(Floats(), shifted), hn::BitCast(Floats(), Word(113u << 23))));
    Vec out = hn::IfThenElse(Above(magnitude, 0x3ff), normal, denormal);
    out = hn::IfThenElse(Above(magnitude, 0x7bff), quiet, out);
    return hn::Or(out, sign);
  }
  static void Store(Vec words, std::byte* to) { Store16(words, to); }
  static Vec Narrow(Vec words) {
    const Vec magnitude = hn::And(words, Word(0x7fffffff));
    const Vec sign = hn::ShiftRight<16>(hn::AndNot(Word(0x7fffffff), words));
    const Vec odd = hn::And(hn::ShiftRight<13>(words), Word(1));
    const Vec rebias = Word(0xfffu - (112u << 23));
    const Vec normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, rebias)));
    // Denormal: adding 0.5 lets the float adder round to multiples of 2^-24.
    const Vec half = Word(126u << 23);
    const Vec sum = hn::BitCast(
        Words(), hn::Add(hn::BitCast(Floats(), magnitude), hn::BitCast(Floats(), half)));
    const Vec denormal = hn::Sub(sum, half);
    const Vec payload = hn::And(hn::ShiftRight<13>(magnitude), Word(0x3ff));
    const Vec quiet = hn::Or(payload, Word(0x7e00));
    Vec out = hn::IfThenElse(Above(magnitude, (113 << 23) - 1), normal, denormal);
    out = hn::IfThenElse(Above(magnitude, (143 << 23) - 1), Word(0x7c00), out);
    out = hn::IfThenElse(Above(magnitude, 0x7f800000), quiet, out);
    return hn::Or(out, sign);
  }
  static float ScalarLoad(const std::byte* from) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return Float16ToFloat(bits);
  }
  static void ScalarStore(float value, std::byte* to) {
    const uint16_t bits = FloatToFloat16(value);
    std::memcpy(to, &bits, sizeof bits);
  }
};

template <typename From, typename To>
void Convert(const std::byte* source, std::byte* target, uint64_t count) {
  const uint64_t lanes = hn::Lanes(Words());
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vec bits = From::Widen(From::Load(source + i * From::kBytes));
    To::Store(To::Narrow(bits), target + i * To::kBytes);
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
