// Where tensors and shards meet: a layer is one flat array in which tensors lie, and a shard is a
// range of it. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/tensor/job_spec.h"

namespace luwu::interchange {

// Elements [first, first + count) of a layer, all of one tensor, beginning at element
// `tensor_first` of it.
struct TensorPart {
  uint32_t tensor = 0;
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t tensor_first = 0;
};

// The first part of a tensor in elements [first, end) of the layer; none when only a gap is there.
std::optional<TensorPart> NextPart(const LayerSpec& layer, uint64_t first, uint64_t end);

// The name of a tensor's values in a file: array 0 is the master, 1 to 3 its moments.
std::string StoredName(const std::string& tensor, uint32_t array);  // "luwu.moment1.h.0.weight"

// Whether files have an array of the tensor: moments are kept of what is trained only.
inline bool IsStored(const TensorSpec& tensor, uint32_t array) {
  return array == 0 || tensor.trainable;
}

}  // namespace luwu::interchange
