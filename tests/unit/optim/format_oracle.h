// A shard in any formats (format_values.h), and its update by the scalar rules (scalar_rules.h).
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "server/optim/optimizer.h"
#include "tests/unit/optim/format_values.h"
#include "tests/unit/optim/support.h"

namespace luwu::optim::testing {

template <typename T>
T Get(const std::vector<std::byte>& bytes, uint64_t index, uint64_t offset = 0) {
  T value;
  std::memcpy(&value, bytes.data() + offset + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void Put(T value, std::vector<std::byte>* bytes, uint64_t index, uint64_t offset = 0) {
  std::memcpy(bytes->data() + offset + index * sizeof(T), &value, sizeof(T));
}

struct FormatShard {
  OptimizerSpec optimizer;
  uint64_t elements = 0;
  std::vector<uint64_t> segment_ends;
  std::array<std::vector<std::byte>, kStateArraysMax> arrays;
  std::vector<std::byte> served;
  DType served_dtype = DType::kBFloat16;

  // Arrays begin on 64 bytes only by luck; kernels must not mind.
  StateArrays pointers() {
    StateArrays result;
    for (uint32_t k = 0; k < kStateArraysMax; ++k) {
      if (!arrays[k].empty()) result.data[k] = arrays[k].data();
    }
    return result;
  }
  StateLayout layout() const { return LayoutOf(optimizer); }
  uint64_t scale_offset() const { return AlignUp(elements, 64); }

  float Read(uint32_t array, uint64_t i, uint64_t segment) const {
    switch (layout().formats[array]) {
      case StateFormat::kFloat32:
        return Get<float>(arrays[array], i);
      case StateFormat::kBFloat16:
        return BFloat16ToFloat(Get<uint16_t>(arrays[array], i));
      case StateFormat::kLow16: {
        const int32_t high = static_cast<int32_t>(uint32_t{Get<uint16_t>(served, i)} << 16);
        const auto low = static_cast<int16_t>(Get<uint16_t>(arrays[array], i));
        return std::bit_cast<float>(static_cast<uint32_t>(high) + static_cast<uint32_t>(low));
      }
      default:
        break;
    }
    const bool is_signed = layout().formats[array] == StateFormat::kSigned8;
    const float scale = Get<float>(arrays[array], i / 256 + segment, scale_offset());
    return static_cast<float>(ValueOfCode(Get<uint8_t>(arrays[array], i), is_signed)) * scale;
  }
};

inline FormatShard MakeShard(const OptimizerSpec& optimizer, DType served_dtype,
                             const std::vector<uint64_t>& segments) {
  FormatShard shard;
  shard.optimizer = optimizer;
  shard.served_dtype = served_dtype;
  for (const uint64_t count : segments) {
    shard.elements += count;
    shard.segment_ends.push_back(shard.elements);
  }
  const StateLayout layout = LayoutOf(optimizer);
  for (uint32_t k = 0; k < layout.count; ++k) {
    shard.arrays[k].resize(ArrayBytes(layout.formats[k], shard.elements, segments.size()));
  }
  shard.served.resize(shard.elements * DTypeBytes(served_dtype));
  return shard;
}

// One update of a block: its gradients, already summed and scaled, from element `first` on.
struct OracleUpdate {
  const Setting& setting;
  uint64_t applied = 0;
  RoundingKey key;
  uint64_t segment = 0;
  uint64_t first = 0;
  std::span<const float> gradients;
};
inline void OracleBlock(const OracleUpdate& update, FormatShard* shard) {
  const auto& [setting, applied, key, segment, first, gradients] = update;
  const StateLayout layout = shard->layout();
  std::array<std::vector<float>, kStateArraysMax> fresh;
  for (uint64_t i = 0; i < gradients.size(); ++i) {
    std::array<float, kStateArraysMax> state = {};
    for (uint32_t k = 0; k < layout.count; ++k) state[k] = shard->Read(k, first + i, segment);
    ScalarUpdate(setting, applied, gradients[i], state.data());
    for (uint32_t k = 0; k < layout.count; ++k) fresh[k].push_back(state[k]);
  }
  for (uint32_t k = 0; k < layout.count; ++k) {
    const StateFormat format = layout.formats[k];
    const bool is8 = format == StateFormat::kSigned8 || format == StateFormat::kUnsigned8;
    float scale = 0x1p-100f;
    for (const float value : fresh[k]) scale = std::max(scale, std::abs(value));
    if (is8) Put(scale, &shard->arrays[k], first / 256 + segment, shard->scale_offset());
    for (uint64_t i = 0; i < fresh[k].size(); ++i) {
      const float value = fresh[k][i];
      const uint32_t bits = Bits(value);
      const auto low = static_cast<uint16_t>(bits);
      if (format == StateFormat::kFloat32) Put(value, &shard->arrays[k], first + i);
      if (format == StateFormat::kLow16) Put(low, &shard->arrays[k], first + i);
      if (format == StateFormat::kBFloat16) {
        const uint32_t random = OracleRandom16(key, first, first + i, k);
        Put(static_cast<uint16_t>((bits + random) >> 16), &shard->arrays[k], first + i);
      }
      if (is8) {
        const bool is_signed = format == StateFormat::kSigned8;
        const uint32_t random = OracleRandom20(key, first, first + i, k);
        Put(CodeOf(value, scale, is_signed, random), &shard->arrays[k], first + i);
      }
      if (k > 0) continue;
      if (format == StateFormat::kLow16) {
        Put(static_cast<uint16_t>((uint64_t{bits} + 0x8000) >> 16), &shard->served, first + i);
      } else if (shard->served_dtype == DType::kFloat32) {
        Put(value, &shard->served, first + i);
      } else {
        const uint32_t half = ServedBits(shard->served_dtype, value);
        Put(static_cast<uint16_t>(half), &shard->served, first + i);
      }
    }
  }
}

// Every combination of the options that shape state, valid or not.
inline std::vector<OptimizerSpec> AllOptimizerSpecs() {
  std::vector<OptimizerSpec> specs;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd,
                                   OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    for (const bool momentum : {false, true}) {
      for (const bool amsgrad : {false, true}) {
        for (const StatePrecision precision :
             {StatePrecision::kFloat32, StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
          for (const MasterFormat master : {MasterFormat::kFloat32, MasterFormat::kSplit}) {
            for (const double initial : {0.0, 0.1}) {
              specs.push_back({kind, momentum, amsgrad, precision, master, 77, initial});
            }
          }
        }
      }
    }
  }
  return specs;
}

inline std::string NameOf(const OptimizerSpec& o) {
  return std::string(OptimizerName(o.kind)) + (o.sgd_momentum ? " momentum" : "") +
         (o.amsgrad ? " amsgrad " : " ") + std::string(StatePrecisionName(o.state_precision)) +
         (o.master_format == MasterFormat::kSplit ? " split" : "") +
         (o.initial_accumulator != 0 ? " initial" : "");
}

inline HyperParameters HyperOf(const OptimizerSpec& optimizer) {
  HyperParameters hyper;
  hyper.lr = 1e-2;
  hyper.weight_decay = 0.01;
  hyper.beta1 = 0.9;
  hyper.beta2 = 0.99;
  hyper.eps = 1e-8;
  hyper.momentum = optimizer.sgd_momentum ? 0.9 : 0;
  return hyper;
}

}  // namespace luwu::optim::testing
