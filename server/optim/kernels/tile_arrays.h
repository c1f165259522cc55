// What the fused pass tells the kernel of one tile: where its arrays are. The same for every SIMD
// target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "server/optim/optimizer.h"

namespace luwu::optim {

// Where the arrays of one tile are. Counts are multiples of kStep.
struct TileArrays {
  uint64_t count = 0;
  uint32_t index = 0;  // of the first element in the shard
  uint64_t at = 0;     // of the first element in the sources
  std::array<const std::byte*, kStateArraysMax> in = {};
  std::array<std::byte*, kStateArraysMax> out = {};
  std::array<float, kStateArraysMax> scale_in = {};    // 8-bit formats
  std::array<float*, kStateArraysMax> scale_out = {};  // 8-bit formats
  const std::byte* served_in = nullptr;                // split master
  std::byte* served = nullptr;
  DType served_dtype = DType::kUnspecified;
  bool stream_served = false;
};

constexpr uint64_t FormatBytes(StateFormat format) {
  if (format == StateFormat::kFloat32) return 4;
  return format == StateFormat::kBFloat16 || format == StateFormat::kLow16 ? 2 : 1;
}

}  // namespace luwu::optim
