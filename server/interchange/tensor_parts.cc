#include "server/interchange/tensor_parts.h"

#include <algorithm>

#include "common/base/check.h"

namespace luwu::interchange {

std::optional<TensorPart> NextPart(const LayerSpec& layer, uint64_t first, uint64_t end) {
  // The last tensor that begins at or before `first`, else the first one of all.
  auto at = std::upper_bound(
      layer.tensors.begin(), layer.tensors.end(), first,
      [](uint64_t element, const TensorSpec& tensor) { return element < tensor.offset; });
  if (at != layer.tensors.begin()) --at;
  for (; at != layer.tensors.end() && at->offset < end; ++at) {
    const StatusOr<uint64_t> elements = TensorElements(*at);
    LUWU_CHECK(elements.ok(), "the spec was validated");
    const uint64_t from = std::max(first, at->offset);
    const uint64_t until = std::min(end, at->offset + *elements);
    if (from >= until) continue;
    return TensorPart{static_cast<uint32_t>(at - layer.tensors.begin()), from, until - from,
                      from - at->offset};
  }
  return std::nullopt;
}

std::string StoredName(const std::string& tensor, uint32_t array) {
  return array == 0 ? tensor : fmt::format("luwu.moment{}.{}", array, tensor);
}

}  // namespace luwu::interchange
