#include "common/tensor/dtype.h"

#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/tensor/dtype_convert.h"

namespace luwu {
namespace {

struct Format {
  DType dtype;
  std::string_view name;
  uint64_t bytes;
};
constexpr Format kFormats[] = {
    {DType::kFloat32, "float32", 4},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat16, "float16", 2},
    {DType::kFloat64, "float64", 8},
};

using Conversion = void (*)(const std::byte* source, std::byte* target, uint64_t count);

Conversion ConversionFor(DType source, DType target) {
  const bool to_float32 = target == DType::kFloat32;
  switch (source) {
    case DType::kFloat32:
      return target == DType::kBFloat16 ? internal::ConvertFloat32ToBFloat16
                                        : internal::ConvertFloat32ToFloat16;
    case DType::kBFloat16:
      return to_float32 ? internal::ConvertBFloat16ToFloat32 : internal::ConvertBFloat16ToFloat16;
    default:
      return to_float32 ? internal::ConvertFloat16ToFloat32 : internal::ConvertFloat16ToBFloat16;
  }
}

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return format.name;
  }
  return "unspecified";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return format.dtype;
  }
  return std::nullopt;
}

uint64_t DTypeBytes(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return format.bytes;
  }
  return 0;
}

bool IsSupported(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

void ConvertElements(DType source_dtype, const std::byte* source, DType target_dtype,
                     std::byte* target, uint64_t count) {
  LUWU_CHECK(IsSupported(source_dtype) && IsSupported(target_dtype),
             "element types are checked before conversion");
  if (source_dtype == target_dtype) {
    if (count > 0 && source != target)
      std::memcpy(target, source, count * DTypeBytes(source_dtype));
    return;
  }
  ConversionFor(source_dtype, target_dtype)(source, target, count);
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t FloatToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t out = 0;
  if (magnitude > 0x7f800000u) {  // NaN, made quiet
    out = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= (143u << 23)) {  // 65536 and more
    out = 0x7c00u;
  } else if (magnitude < (113u << 23)) {  // denormal: the float adder rounds to multiples of 2^-24
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    out = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  } else {
    out = (magnitude + ((magnitude >> 13) & 1u) + 0xfffu - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(out | sign);
}

float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = (uint32_t{bits} & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  uint32_t out = 0;
  if (magnitude >= 0x7c00u) {
    out = 0x7f800000u | (magnitude << 13);
    if (magnitude > 0x7c00u) out |= 0x400000u;  // NaN, made quiet
  } else if (magnitude < 0x400u) {              // denormal: the exact difference of two floats
    const uint32_t smallest_normal = 113u << 23;
    out = std::bit_cast<uint32_t>(std::bit_cast<float>((magnitude << 13) + smallest_normal) -
                                  std::bit_cast<float>(smallest_normal));
  } else {
    out = (magnitude << 13) + (112u << 23);
  }
  return std::bit_cast<float>(out | sign);
}

}  // namespace luwu
