// Vectorised conversion loops between two different element types, for ConvertElements only. Picked
// for the CPU at run time; every variant gives the bits of the scalar functions in dtype.h.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"

namespace luwu::internal {

void ConvertFloat32ToBFloat16(const std::byte* source, std::byte* target, uint64_t count);
void ConvertFloat32ToFloat16(const std::byte* source, std::byte* target, uint64_t count);
void ConvertBFloat16ToFloat32(const std::byte* source, std::byte* target, uint64_t count);
void ConvertBFloat16ToFloat16(const std::byte* source, std::byte* target, uint64_t count);
void ConvertFloat16ToFloat32(const std::byte* source, std::byte* target, uint64_t count);
void ConvertFloat16ToBFloat16(const std::byte* source, std::byte* target, uint64_t count);

}  // namespace luwu::internal
