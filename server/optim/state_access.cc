// State outside updates: one value at a time, in the formats of docs/OPTIMIZERS.md. Loading,
// reading and checkpoints use it; speed is that of plain code.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/check.h"
#include "server/optim/optimizer.h"
#include "server/optim/registry.h"

namespace luwu::optim {
namespace {

template <typename T>
T Load(const std::byte* data, uint64_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(T value, std::byte* data, uint64_t index) {
  std::memcpy(data + index * sizeof(T), &value, sizeof(T));
}

// What a code stands for, as a share of its block's scale.
float ShareOf(uint8_t code, bool is_signed) {
  const int bias = is_signed ? 15 : 31;
  const uint32_t magnitude = is_signed ? code & 0x7Fu : code;
  const int exponent = static_cast<int>(magnitude >> 3);
  const float mantissa = static_cast<float>(magnitude & 7u);
  const float share = exponent == 0 ? std::ldexp(mantissa, 1 - bias - 3)
                                    : std::ldexp(8 + mantissa, exponent - bias - 3);
  return is_signed && (code & 0x80u) != 0 ? -share : share;
}

// The code whose value is nearest to `magnitude`, sign apart: values grow with codes.
uint8_t NearestCode(float magnitude, float scale, bool is_signed) {
  int low = 0;
  int high = is_signed ? 15 << 3 : 31 << 3;  // a share of 1
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ShareOf(static_cast<uint8_t>(middle), is_signed) * scale < magnitude) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const auto distance = [&](int code) {
    return std::abs(double(ShareOf(static_cast<uint8_t>(code), is_signed) * scale) - magnitude);
  };
  // As an update: what is not 0 does not become 0 where that would be a divisor.
  const bool down = low > (is_signed ? 0 : 1) && distance(low - 1) < distance(low);
  return static_cast<uint8_t>(down ? low - 1 : low);
}

// Codes of one block's values; returns its scale, by the rule of updates. Their largest value has
// a share of 1, so that the scale of values that were read comes out as it was.
float WriteBlock(const float* values, uint64_t count, bool is_signed, std::byte* codes) {
  constexpr float kLeast = 0x1p-100f;
  constexpr float kMost = std::numeric_limits<float>::max();
  float scale = kLeast;
  for (uint64_t i = 0; i < count; ++i) scale = std::max(scale, std::abs(values[i]));
  scale = std::min(scale, kMost);
  for (uint64_t i = 0; i < count; ++i) {
    const float magnitude = is_signed ? std::abs(values[i]) : std::max(values[i], 0.0f);
    const uint8_t sign = is_signed && std::signbit(values[i]) ? 0x80 : 0;
    codes[i] = std::byte(NearestCode(magnitude, scale, is_signed) | sign);
  }
  return scale;
}

std::byte* ScalesOf(std::byte* array, const StateRange& range) {
  return array + AlignUp(range.shard_elements, 64);
}

float LoadSplit(const StateRange& range, uint64_t element) {
  const uint32_t high = Load<uint16_t>(range.served, element);
  const uint32_t low = Load<uint16_t>(range.state.data[0], element);
  return std::bit_cast<float>((high << 16) + low - ((low & 0x8000u) << 1));
}

void StoreSplit(const StateRange& range, uint64_t element, float value) {
  const uint32_t bits = std::isnan(value) ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
  Store(static_cast<uint16_t>((bits + 0x8000u) >> 16), range.served, element);
  Store(static_cast<uint16_t>(bits), range.state.data[0], element);
}

float ReadOne(StateFormat format, const StateRange& range, uint32_t array, uint64_t element) {
  std::byte* data = range.state.data[array];
  switch (format) {
    case StateFormat::kFloat32:
      return Load<float>(data, element);
    case StateFormat::kBFloat16:
      return BFloat16ToFloat(Load<uint16_t>(data, element));
    case StateFormat::kLow16:
      return LoadSplit(range, element);
    case StateFormat::kSigned8:
    case StateFormat::kUnsigned8:
      break;
  }
  const uint64_t block = element / kQuantBlock + range.segment;
  const float scale = Load<float>(ScalesOf(data, range), block);
  return ShareOf(Load<uint8_t>(data, element), format == StateFormat::kSigned8) * scale;
}

}  // namespace

void ReadState(const OptimizerSpec& optimizer, const StateRange& range, uint32_t array,
               float* values) {
  const StateLayout layout = LayoutOf(optimizer);
  LUWU_CHECK(array < layout.count, "state array that the optimizer does not keep");
  const StateFormat format = layout.formats[array];
  if (format == StateFormat::kFloat32) {
    std::memcpy(values, range.state.data[array] + range.first * sizeof(float),
                range.count * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < range.count; ++i) {
    values[i] = ReadOne(format, range, array, range.first + i);
  }
}

void WriteMasters(const OptimizerSpec& optimizer, const StateRange& range, const float* values) {
  if (optimizer.master_format == MasterFormat::kFloat32) {
    std::memcpy(range.state.data[0] + range.first * sizeof(float), values,
                range.count * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < range.count; ++i) StoreSplit(range, range.first + i, values[i]);
}

void WriteState(const OptimizerSpec& optimizer, const StateRange& range, uint32_t array,
                const float* values) {
  const StateLayout layout = LayoutOf(optimizer);
  LUWU_CHECK(array < layout.count, "state array that the optimizer does not keep");
  if (array == 0) return WriteMasters(optimizer, range, values);
  std::byte* data = range.state.data[array];
  switch (layout.formats[array]) {
    case StateFormat::kFloat32:
      std::memcpy(data + range.first * sizeof(float), values, range.count * sizeof(float));
      return;
    case StateFormat::kBFloat16:
    case StateFormat::kLow16:
      for (uint64_t i = 0; i < range.count; ++i) {
        Store(FloatToBFloat16(values[i]), data, range.first + i);
      }
      return;
    case StateFormat::kSigned8:
    case StateFormat::kUnsigned8:
      break;
  }
  const bool is_signed = layout.formats[array] == StateFormat::kSigned8;
  for (uint64_t at = 0; at < range.count;) {
    const uint64_t first = range.first + at;
    const uint64_t count =
        std::min(range.count - at, (first / kQuantBlock + 1) * kQuantBlock - first);
    const uint64_t block = first / kQuantBlock + range.segment;
    const float scale = WriteBlock(values + at, count, is_signed, data + first);
    Store(scale, ScalesOf(data, range), block);
    at += count;
  }
}

void InitialState(const OptimizerSpec& optimizer, const StateRange& range) {
  if (range.count == 0) return;
  const StateLayout layout = LayoutOf(optimizer);
  const float initial = static_cast<float>(optimizer.initial_accumulator);
  for (uint32_t k = 1; k < layout.count; ++k) {
    std::byte* data = range.state.data[k];
    switch (layout.formats[k]) {
      case StateFormat::kFloat32:
        for (uint64_t i = 0; i < range.count; ++i) Store(initial, data, range.first + i);
        continue;
      case StateFormat::kBFloat16:
      case StateFormat::kLow16:
        for (uint64_t i = 0; i < range.count; ++i) {
          Store(FloatToBFloat16(initial), data, range.first + i);
        }
        continue;
      case StateFormat::kSigned8:
      case StateFormat::kUnsigned8:
        break;
    }
    const int one = layout.formats[k] == StateFormat::kSigned8 ? 15 << 3 : 31 << 3;
    std::memset(data + range.first, initial == 0 ? 0 : one, range.count);
    const uint64_t last = range.first + range.count - 1;
    for (uint64_t block = range.first / kQuantBlock; block <= last / kQuantBlock; ++block) {
      Store(initial, ScalesOf(data, range), block + range.segment);
    }
  }
}

}  // namespace luwu::optim
