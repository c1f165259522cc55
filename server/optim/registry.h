// The optimizers that are built: one row each. A row says what an optimizer keeps and how to apply
// it; everything else (formats, layouts, refusals) follows from that. Adding an optimizer: a file
// with its rule (see lion.h), its row in registry.cc; its name: docs/OPTIMIZERS.md.
// Const data, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "server/optim/optimizer.h"

namespace luwu::optim {

// What one array beside the master holds; decides its 8-bit map.
enum class StateRole : uint8_t { kSigned, kUnsigned };

constexpr StateFormat FormatOf(StatePrecision precision, StateRole role) {
  if (precision == StatePrecision::kFloat32) return StateFormat::kFloat32;
  if (precision == StatePrecision::kBFloat16) return StateFormat::kBFloat16;
  return role == StateRole::kSigned ? StateFormat::kSigned8 : StateFormat::kUnsigned8;
}

struct Moments {
  uint32_t count = 0;
  std::array<StateRole, kStateArraysMax - 1> roles = {};
};

struct OptimizerEntry {
  OptimizerKind kind = OptimizerKind::kUnspecified;
  Moments (*moments)(const OptimizerSpec& optimizer) = nullptr;
  UpdateOutcome (*apply)(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                         uint64_t applied, const UpdateRange& range) = nullptr;
};

// Null when there is no such optimizer.
const OptimizerEntry* FindOptimizer(OptimizerKind kind);

StateLayout LayoutOf(const OptimizerEntry& entry, const OptimizerSpec& optimizer);

// optimizer.h's ApplyUpdate for an optimizer that need not be in the table.
UpdateOutcome ApplyUpdate(const OptimizerEntry& entry, const OptimizerSpec& optimizer,
                          const HyperParameters& hyper, uint64_t applied, const UpdateRange& range);

}  // namespace luwu::optim
