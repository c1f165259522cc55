// The layers of a bench job, and everything else its workers must agree on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/tensor/dtype.h"
#include "tests/bench/link.h"

namespace luwu::bench {

struct BenchLayer {
  std::string name;
  uint64_t elements = 0;
};

struct BenchJob {
  std::string name;
  uint32_t world_size = 1;
  std::vector<BenchLayer> layers;
  bool adamw = true;  // else plain SGD, the least work an update can be
  std::string wire_dtype = "bf16";
  bool keep_undo_state = true;
  uint32_t slots_per_worker = 16;
  uint64_t shard_elements = 1 << 20;

  uint64_t elements() const;
  uint64_t largest_layer() const;
  uint64_t wire_bytes() const;  // of one element
};

// Of "bf16", "fp16" or "fp32".
DType DTypeOf(const std::string& wire_dtype);
inline uint64_t WireBytes(const std::string& wire_dtype) { return DTypeBytes(DTypeOf(wire_dtype)); }

Json ToJson(const BenchJob& job);
BenchJob JobFromJson(const Json& json);  // throws Json::exception

// `layers` equal layers with `params` elements together.
std::vector<BenchLayer> EqualLayers(uint64_t params, uint64_t layers);
// One "name elements" a line; '#' begins a comment.
StatusOr<std::vector<BenchLayer>> ReadLayerTable(const std::string& path);

}  // namespace luwu::bench
