#include "server/step/state_values.h"

#include <algorithm>
#include <cstring>

namespace luwu {

void ReadStateValues(const StateOwner& owner, const StateView& view, uint64_t first,
                     std::span<float> out) {
  if (!owner.spec.layers[owner.shard.layer].trainable()) {
    std::memcpy(out.data(), view.state.data[0] + first * sizeof(float), out.size_bytes());
    return;
  }
  const uint64_t end = first + out.size();
  for (const Segment& segment : owner.segments) {
    const uint64_t from = std::max(first, segment.first);
    const uint64_t until = std::min(end, segment.first + segment.count);
    if (from >= until) continue;
    const optim::StateRange range = {
        .first = from,
        .count = until - from,
        .shard_elements = owner.shard.elements,
        .segment = static_cast<uint32_t>(&segment - owner.segments.data()),
        .state = view.state,
        .served = view.served};
    optim::ReadState(owner.spec.optimizer, range, view.array, out.data() + (from - first));
  }
}

}  // namespace luwu
