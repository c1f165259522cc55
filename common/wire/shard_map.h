// The shards of one node, in layer-major order, with the byte offsets of everything about them in
// that node's regions. Pure function of spec and placement: the daemon and every client compute
// the same table, so no table is ever sent.
//
// weights region:  ShardHeader[shard_count][2]   (64 bytes each; index = local shard, version % 2)
//                  payloads of even versions     (from weights_payload_offset(0))
//                  payloads of odd versions      (from weights_payload_offset(1))
//   Within one payload area the node's shards of a layer lie back to back in shard order, and a
//   layer starts on a 4096-byte boundary: a layer owned by a single node is one contiguous run.
//   Trainable layers come first; frozen ones, which have one content only, follow in the even area
//   and have no place in the odd one.
//   With a window (common/wire/window.h) it is laid out by slot instead.
// inbox region:    slots_per_worker slots of slot_bytes; see common/wire/slot_trailer.h.
// board region:    see common/wire/board.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"

namespace luwu {

struct LocalShard {
  uint32_t layer = 0;
  uint32_t shard = 0;          // index within the layer
  uint64_t first_element = 0;  // within the layer
  uint64_t elements = 0;
  uint64_t payload_offset = 0;  // bytes from the start of the even payload area
};

class ShardMap {
 public:
  // `window_slots` is what the node says; 0: all served copies are in memory.
  ShardMap(const JobSpec& spec, const Placement& placement, uint32_t node,
           uint32_t window_slots = 0);

  const std::vector<LocalShard>& shards() const { return shards_; }
  uint64_t shard_count() const { return shards_.size(); }
  // Local index of (layer, shard), or nothing when another node owns it or it does not exist.
  std::optional<uint32_t> IndexOf(uint32_t layer, uint64_t shard) const;
  // Local indices of a layer's shards on this node: [begin, end).
  struct IndexRange {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  IndexRange LayerRange(uint32_t layer) const { return layer_ranges_[layer]; }

  uint64_t elements() const { return elements_; }  // sum over local shards
  uint64_t weights_bytes() const { return weights_bytes_; }
  // Without a window.
  static uint64_t header_offset(uint32_t index, uint64_t version);
  // For a frozen layer the version makes no difference.
  uint64_t payload_offset(uint32_t index, uint64_t version) const;

  // With one.
  uint32_t window_slots() const { return window_slots_; }
  bool has_window() const { return window_slots_ > 0; }
  static uint64_t window_header_offset(uint32_t slot);
  uint64_t window_payload_offset(uint32_t slot) const;
  // Of a slot: the largest served copy of a shard of the node, padded to pages.
  uint64_t window_slot_bytes() const { return window_slot_bytes_; }

  uint64_t slot_bytes() const { return slot_bytes_; }
  uint64_t inbox_bytes() const { return inbox_bytes_; }
  uint64_t board_bytes() const { return board_bytes_; }

 private:
  void LayOutWeights(const JobSpec& spec);

  uint32_t window_slots_;
  std::vector<LocalShard> shards_;
  std::vector<IndexRange> layer_ranges_;
  uint64_t elements_ = 0;
  uint64_t trainable_bytes_ = 0;  // of one payload area
  uint64_t payload_area_offset_[2] = {0, 0};
  uint64_t weights_bytes_ = 0;
  uint64_t window_slot_bytes_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t inbox_bytes_ = 0;
  uint64_t board_bytes_ = 0;
};

}  // namespace luwu
