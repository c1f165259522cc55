// Element types on the wire and in caller buffers, and conversion between them. bf16 and fp16 are
// rounded to nearest even; NaN stays NaN, and values beyond fp16's range become infinity.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace luwu {

// Values equal luwu.v1.DType and luwu_dtype; never renumbered.
enum class DType : uint8_t {
  kUnspecified = 0,
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kFloat64 = 4,  // known by name so that it can be refused by name
};

std::string_view DTypeName(DType dtype);  // "float32"
std::optional<DType> ParseDType(std::string_view name);
uint64_t DTypeBytes(DType dtype);  // 0 for kUnspecified
// float32, bfloat16 and float16: what may be served, pushed, fetched into and pushed from.
bool IsSupported(DType dtype);

// Converts `count` elements. `source` and `target` must not overlap unless both dtypes are equal
// and the addresses are equal. Equal dtypes copy. Both dtypes must be supported (CHECKed).
void ConvertElements(DType source_dtype, const std::byte* source, DType target_dtype,
                     std::byte* target, uint64_t count);

uint16_t FloatToBFloat16(float value);
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToFloat16(float value);
float Float16ToFloat(uint16_t bits);

}  // namespace luwu
