// The bytes of one shard's state: how long each array is, and what a stored generation consists of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/optim/optimizer.h"

namespace luwu {

struct StateShape {
  std::array<uint64_t, optim::kStateArraysMax> array_bytes = {};
  uint64_t generation_bytes = 0;  // of all arrays
  // Split masters: their upper halves are the served copy, which a stored generation has behind the
  // arrays. Else 0.
  uint64_t served_bytes = 0;
  uint32_t generations = 1;  // in memory

  uint64_t stored_bytes() const { return generation_bytes + served_bytes; }
  // Where the arrays are in a generation that begins at `base`.
  optim::StateArrays ArraysAt(std::byte* base) const;
};

StateShape ShapeOf(const JobSpec& spec, const LocalShard& shard);

}  // namespace luwu
