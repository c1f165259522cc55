#include "common/wire/shard_map.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/wire/board.h"
#include "common/wire/shard_header.h"
#include "common/wire/slot_trailer.h"

namespace luwu {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHeadersPerShard = 2;  // of even and odd versions

}  // namespace

ShardMap::ShardMap(const JobSpec& spec, const Placement& placement, uint32_t node,
                   uint32_t window_slots)
    : window_slots_(window_slots) {
  LUWU_CHECK(node < placement.node_count(), "the node must be in the list");
  layer_ranges_.resize(spec.layers.size());
  uint64_t pushed_elements_max = 0;
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const uint64_t layer_elements = spec.layers[layer].elements;
    const uint64_t count = ShardCount(layer_elements, spec.shard_elements);
    layer_ranges_[layer].begin = static_cast<uint32_t>(shards_.size());
    for (uint64_t shard = 0; shard < count; ++shard) {
      if (placement.NodeOf(layer, shard) != node) continue;
      const ShardRange range = RangeOfShard(layer_elements, spec.shard_elements, shard);
      shards_.push_back({layer, static_cast<uint32_t>(shard), range.first, range.elements, 0});
      elements_ += range.elements;
      if (spec.layers[layer].trainable()) {
        pushed_elements_max = std::max(pushed_elements_max, range.elements);
      }
    }
    layer_ranges_[layer].end = static_cast<uint32_t>(shards_.size());
  }
  LayOutWeights(spec);
  slot_bytes_ = SlotBytes(pushed_elements_max * DTypeBytes(spec.gradient_dtype));
  inbox_bytes_ = slot_bytes_ * spec.slots_per_worker;
  board_bytes_ = BoardBytes(spec.slots_per_worker, shards_.size(), has_window());
}

void ShardMap::LayOutWeights(const JobSpec& spec) {
  uint64_t largest_bytes = 0;
  uint64_t end = 0;  // in the even payload area
  for (const bool trainable : {true, false}) {
    for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
      if (spec.layers[layer].trainable() != trainable) continue;
      end = AlignUp(end, kPageBytes);
      for (uint32_t i = layer_ranges_[layer].begin; i < layer_ranges_[layer].end; ++i) {
        shards_[i].payload_offset = end;
        const uint64_t bytes = shards_[i].elements * DTypeBytes(spec.served_dtype);
        largest_bytes = std::max(largest_bytes, bytes);
        end += bytes;
      }
    }
    if (trainable) trainable_bytes_ = AlignUp(end, kPageBytes);
  }
  payload_area_offset_[0] =
      AlignUp(shards_.size() * kHeadersPerShard * sizeof(ShardHeader), kPageBytes);
  payload_area_offset_[1] = payload_area_offset_[0] + AlignUp(end, kPageBytes);
  weights_bytes_ = payload_area_offset_[1] + trainable_bytes_;
  window_slot_bytes_ = AlignUp(largest_bytes, kPageBytes);
  if (has_window()) weights_bytes_ = window_payload_offset(window_slots_);
}

std::optional<uint32_t> ShardMap::IndexOf(uint32_t layer, uint64_t shard) const {
  if (layer >= layer_ranges_.size()) return std::nullopt;
  const auto begin = shards_.begin() + layer_ranges_[layer].begin;
  const auto end = shards_.begin() + layer_ranges_[layer].end;
  const auto found = std::lower_bound(
      begin, end, shard,
      [](const LocalShard& local, uint64_t wanted) { return local.shard < wanted; });
  if (found == end || found->shard != shard) return std::nullopt;
  return static_cast<uint32_t>(found - shards_.begin());
}

uint64_t ShardMap::window_header_offset(uint32_t slot) { return slot * sizeof(ShardHeader); }

uint64_t ShardMap::window_payload_offset(uint32_t slot) const {
  return AlignUp(window_slots_ * sizeof(ShardHeader), kPageBytes) + slot * window_slot_bytes_;
}

uint64_t ShardMap::header_offset(uint32_t index, uint64_t version) {
  return (index * kHeadersPerShard + version % 2) * sizeof(ShardHeader);
}

uint64_t ShardMap::payload_offset(uint32_t index, uint64_t version) const {
  LUWU_CHECK(index < shards_.size(), "the shard must be local");
  const uint64_t offset = shards_[index].payload_offset;
  const bool frozen = offset >= trainable_bytes_;
  return payload_area_offset_[frozen ? 0 : version % 2] + offset;
}

}  // namespace luwu
